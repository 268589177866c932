"""
Signals. After SIGTERM or SIGUSR1, the same command continues the run. Ctrl-C and errors end all processes of the run.
"""

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)

REQUEUE_STATUS = 85  # exit status of a run to start again; sysexits.h (64-78) and shells (126-165) do not use it
SIGINT_STATUS = 128 + signal.SIGINT  # as in shells
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
LAUNCHERS = ("accelerate", "torchrun", "torch.distributed.", "deepspeed")  # prefixes of scripts and modules
PR_SET_PDEATHSIG = 1  # for Linux' prctl(2)


class Interrupted(SystemExit):
    """
    Raised if a signal ended the run. The exit status is `REQUEUE_STATUS`. Started again, the run continues.

    Args:
        message (`str`): what happened, and how to go on.
    """

    def __init__(self, message: str):
        super().__init__(REQUEUE_STATUS)
        self.message = message


# ---- The whole of a script ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """
    Run a script so that it ends with one message and leaves no process behind.

    - SIGTERM and SIGUSR1 end it with the status `REQUEUE_STATUS`. During training, see [`stop_on_signals`].
    - Ctrl-C ends it with the status 130 and a message that says how to continue.
    - If its launcher (`accelerate launch`, `torchrun`) is killed, it ends, too (on Linux).
    - If one of several processes fails, it ends at once, so that the launcher ends the others. Freeing its process
      group while others wait for it could hang, see [`DepthTrainer.end`].
    """
    _end_with_launcher()
    with _handlers(_interrupt_now):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            advice = getattr(interrupt, "__notes__", None) or [
                "Run the same command again: it continues from its last checkpoint, if there is one."
            ]
            _end_process(SIGINT_STATUS, f"Interrupted by Ctrl-C: nothing was saved. {' '.join(advice)}")
        except Interrupted as interrupt:
            _end_process(REQUEUE_STATUS, interrupt.message)
        except BaseException as error:
            if dist.is_initialized():
                _end_failed_process(error)
            raise


def _interrupt_now(signum: int, frame: FrameType | None) -> None:
    """End a script outside of training, when there is nothing to save."""
    name = signal.Signals(signum).name
    raise Interrupted(f"Ended by {name} outside of training. Run the same command again to continue.")


def _end_process(status: int, message: str) -> None:
    """Print a message on the first process and end this process."""
    for signum in (signal.SIGINT, *STOP_SIGNALS):
        signal.signal(signum, signal.SIG_IGN)  # a launcher signals the others when the first process has ended
    if os.environ.get("RANK", "0") == "0":
        print(f"\n{message} (Exit status {status}.)", file=sys.stderr, flush=True)
    _exit(status)


def _end_failed_process(error: BaseException) -> None:
    """Print an error as Python would and end this process, one of several."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        _exit(1)
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr)
    _exit(error.code if isinstance(error.code, int) else int(error.code is not None))


def _exit(status: int) -> None:
    if not dist.is_initialized():
        sys.exit(status)
    # `destroy_process_group` would wait for stuck processes, and freeing the group can hang. So run the exit functions
    # (W&B, the end of workers) and skip the rest, as `multiprocessing` does.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_with_launcher() -> None:
    """
    Let this process end when its launcher ends, even if that was killed during the imports.

    On Linux, the kernel sends a SIGTERM. A script that a shell started is not affected, so `nohup` works.
    """
    parent = os.getppid()
    if sys.platform == "linux" and _is_launcher(parent):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        is_lost = os.getppid() != parent  # the parent ended in between
    else:
        is_lost = _has_lost_its_launcher()
    if is_lost:
        _end_process(1, "The launcher of this process was killed before training began.")


def _is_launcher(pid: int) -> bool:
    """Return whether a process is a launcher: Python that runs a script or module such as `accelerate`."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (OSError, UnicodeDecodeError):
        return False
    python, *names = [Path(argument).name for argument in arguments[:4]]  # includes options such as `-m` and `-u`
    return python.startswith("python") and any(name.startswith(LAUNCHERS) for name in names if name[-3:] != ".py")


def _has_lost_its_launcher() -> bool:
    """
    Return whether a launcher started this process and has ended.

    Nobody then answers at the address where the processes meet, and they would wait there for half an hour.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10).close()
    except ConnectionRefusedError:
        return True
    except (OSError, LookupError, ValueError):  # a wrong address is reported where it is used
        return False
    return False


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGTERM and SIGUSR1 of this process, not of its children. No effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(signum, frame)
        else:  # a child process inherited the handler
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    previous = {signum: signal.signal(signum, handle) for signum in STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, former in previous.items():
            signal.signal(signum, former)


# ---- Training -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stop_on_signals(trainer: "Trainer") -> Iterator[None]:
    """
    Save a checkpoint at the end of the step and end the run, if SIGTERM or SIGUSR1 arrives during training.

    A run that continues from that checkpoint gives the same result as one without an interruption. An evaluation that
    is due at this step is made first. A signal during an evaluation takes effect at the next step. A signal after the
    last step takes effect when the model is saved. It is enough that one of several processes gets the signal.

    Args:
        trainer (`DepthTrainer`): the trainer. Its process group and trackers are ended, too.

    Raises:
        [`Interrupted`]: after a signal.
    """
    callback = StopOnSignal()
    trainer.add_callback(callback)
    try:
        with _handlers(callback.receive):
            try:
                yield
                name = callback.requested()
                if name is not None:
                    message = f"{name} after the last step: the trained model is saved. Run the same command again "
                    raise Interrupted(message + "for the remaining steps, such as evaluation.")
            except Interrupted:
                trainer.end()
                raise
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_how_to_continue(trainer.args, trainer.last_checkpoint))
        raise
    finally:
        trainer.remove_callback(callback)


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and stops at the end of the step in which a process got a signal."""

    def __init__(self):
        self.signum = 0  # the signal that this process has got
        self.name: str | None = None  # the signal for which the run stops, set at the step at which it is saved
        self.is_saved = False
        self.group = None

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal. Later signals are ignored, as cluster and launcher may both send one."""
        self.signum = self.signum or int(signum)

    def requested(self) -> str | None:
        """Return the name of the signal that any process has got. All processes call this at the same time."""
        signum = self.signum
        if dist.is_initialized() and dist.get_world_size() > 1:
            # A tensor on the CPU, so that no process waits for its device.
            flag = torch.tensor([signum], dtype=torch.int32)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group)
            signum = int(flag)
        return signal.Signals(signum).name if signum else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if dist.is_initialized() and dist.get_backend() != "gloo":
            self.group = dist.new_group(backend="gloo")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        name = self.requested()
        if name is None or state.global_step >= state.max_steps:  # after the last step, the model is saved anyway
            return
        self.name = name
        logger.warning(f"{name}: saving a checkpoint at step {state.global_step} and ending.")
        control.should_training_stop = control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.is_saved = self.name is not None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.name is not None:  # the step is finished, the end of the epoch belongs to the next run
            control.should_log = control.should_evaluate = False
            # With `save_strategy` best, an evaluation saves a checkpoint only if the score is the best.
            control.should_save = not self.is_saved

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.name is not None:
            last = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            raise Interrupted(f"{self.name} at step {state.global_step}. {_how_to_continue(args, last)}")


def _how_to_continue(args: TrainingArguments, last: str | None) -> str:
    """Return advice on how to continue an interrupted run, and from which checkpoint."""
    if last is None:
        return "There is no checkpoint yet: the same command starts from the beginning."
    if str(args.resume_from_checkpoint).lower() in ("none", "true", "last", "auto"):
        return f"Run the same command again: it continues from {last}."
    return f"Run it again with `--resume_from_checkpoint {last}`: it continues from there."


def end_processes(trainer: "Trainer") -> None:
    """
    End the data loaders and the process group of a trainer, so that its processes can end. It cannot be used again.

    Args:
        trainer (`DepthTrainer`): the trainer.
    """
    trainer.accelerator.wait_for_everyone()
    # Freed with the trainer, each persistent worker would be waited for for five seconds (torch 2.13).
    for loader in trainer.accelerator._dataloaders:
        iterator = getattr(getattr(loader, "base_dataloader", loader), "_iterator", None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    if trainer.args.world_size > 1:
        # Free `DistributedDataParallel` before its process group (torch 2.13). At exit, the destructor of gloo would
        # wait for a thread that waits for the GIL, and the process would hang. See
        # https://github.com/pytorch/pytorch/issues/56297 and https://github.com/pytorch/pytorch/issues/190489.
        trainer.model_wrapped = trainer.model
        trainer.accelerator.free_memory()
        gc.collect()
