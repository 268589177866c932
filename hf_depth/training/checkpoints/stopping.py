"""
Signals: SIGTERM and SIGUSR1 end a run so that the same command continues it; Ctrl-C and errors end all its processes.
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

from ...arguments.printing import lasting_output

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)

REQUEUE_STATUS = 85  # exit status of a run to be started again; neither of sysexits.h (64-78) nor of a shell (126-165)
SIGINT_STATUS = 128 + signal.SIGINT  # as shells count
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
LAUNCHERS = ("accelerate", "torchrun", "torch.distributed.", "deepspeed")  # how names of scripts and modules begin
PR_SET_PDEATHSIG = 1  # of Linux' prctl(2)


class Interrupted(SystemExit):
    """
    A signal ended the run, which continues when it is started again; the exit status is `REQUEUE_STATUS`.

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
    For the whole of a script: however it ends, it says why once, and no process of it stays behind.

    - SIGTERM and SIGUSR1 end it with the status `REQUEUE_STATUS`; while it trains, see [`stop_on_signals`].
    - Ctrl-C ends it with the status 130 and a message that says how to go on.
    - If its launcher (`accelerate launch`, `torchrun`) is killed, it gets a SIGTERM (Linux), or ends at its beginning.
    - One of several processes that fails ends at once. Otherwise the interpreter would free the process group while
      others wait for it, which can hang (see [`DepthTrainer.end`]), and the launcher would not end the others.
    """
    _end_with_launcher()
    with lasting_output(), _handlers(_interrupt_now):
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
    """End a script that does not train: there is nothing to save."""
    name = signal.Signals(signum).name
    raise Interrupted(f"Ended by {name} outside of training. Run the same command again, and it goes on.")


def _end_process(status: int, message: str) -> None:
    """End this process after its message, which only the first of several processes prints."""
    for signum in (signal.SIGINT, *STOP_SIGNALS):
        signal.signal(signum, signal.SIG_IGN)  # a launcher ends the others when the first of them has ended
    if os.environ.get("RANK", "0") == "0":
        print(f"\n{message} (Exit status {status}.)", file=sys.stderr, flush=True)
    _exit(status)


def _end_failed_process(error: BaseException) -> None:
    """End one of several processes after an error, which is printed as Python would."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        _exit(1)
    if isinstance(error.code, str):
        print(error.code, file=sys.stderr)
    _exit(error.code if isinstance(error.code, int) else int(error.code is not None))


def _exit(status: int) -> None:
    if not dist.is_initialized():
        sys.exit(status)
    # Without `destroy_process_group`, which waits for processes that may be stuck, and without freeing the group,
    # which can hang. What is registered to run at exit (W&B, the end of workers) does run, as in `multiprocessing`.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_with_launcher() -> None:
    """
    End this process with its launcher, also if that was killed while this process was importing.

    Linux sends a SIGTERM when the launcher ends. Only then: a script that a shell started goes on when the shell ends,
    for `nohup`.
    """
    parent = os.getppid()
    if sys.platform == "linux" and _is_launcher(parent):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        is_lost = os.getppid() != parent  # it ended in between
    else:
        is_lost = _has_lost_its_launcher()
    if is_lost:
        _end_process(1, "The launcher of this process was killed before training began.")


def _is_launcher(pid: int) -> bool:
    """Whether a process is `accelerate launch` or its like: Python with the name of a launcher as script or module."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (OSError, UnicodeDecodeError):
        return False
    python, *names = [Path(argument).name for argument in arguments[:4]]  # options such as `-m` and `-u`, the script
    return python.startswith("python") and any(name.startswith(LAUNCHERS) for name in names if name[-3:] != ".py")


def _has_lost_its_launcher() -> bool:
    """
    Whether `torchrun` or `accelerate launch` has started this process and ended: nobody answers at the address where
    the processes find each other, and they would ask there for half an hour.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=10).close()
    except ConnectionRefusedError:
        return True
    except (OSError, LookupError, ValueError):  # not known: whoever needs the address will tell
        return False
    return False


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let `handler` take SIGTERM and SIGUSR1 of this process, not of its children; without effect in other threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(signum, frame)
        else:  # a child inherits the handler, but not what it does
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
    While the trainer trains: SIGTERM and SIGUSR1 save a checkpoint at the end of the step and end the run.

    The run that continues from that checkpoint equals one that was not interrupted. To that end an evaluation that is
    due at this very step is made before. A signal during an evaluation takes effect at the next step, one after the
    last step when the trained model is saved. Of several processes it is enough that one gets the signal.

    Args:
        trainer (`DepthTrainer`): its process group and trackers are ended as well.

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
                    raise Interrupted(message + "for what else it does.")
            except Interrupted:
                trainer.end()
                raise
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_how_to_continue(trainer.args, trainer.last_checkpoint))
        raise
    finally:
        trainer.remove_callback(callback)


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and stops at the end of the step in which one of the processes got a signal."""

    def __init__(self):
        self.signum = 0  # that this process has got
        self.name: str | None = None  # of the signal for which the run stops, from the step on at which it is saved
        self.is_saved = False
        self.group = None

    def receive(self, signum: int, frame: FrameType | None) -> None:
        """The handler of the signals. A cluster and a launcher both send one: what follows is the same request."""
        self.signum = self.signum or int(signum)

    def requested(self) -> str | None:
        """The name of the signal that any process has got; all processes call this at the same time."""
        signum = self.signum
        if dist.is_initialized() and dist.get_world_size() > 1:
            # On the CPU, so that no process waits for its device.
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
        if name is None or state.global_step >= state.max_steps:  # then there is only the trained model to save
            return
        self.name = name
        logger.warning(f"{name}: saving a checkpoint at step {state.global_step} and ending.")
        control.should_training_stop = control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.is_saved = self.name is not None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.name is not None:  # what was due at this step is done, what is due at the end of the epoch is not yet
            control.should_log = control.should_evaluate = False
            # After an evaluation, `save_strategy` best has saved a new best score only.
            control.should_save = not self.is_saved

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.name is not None:
            last = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            raise Interrupted(f"{self.name} at step {state.global_step}. {_how_to_continue(args, last)}")


def _how_to_continue(args: TrainingArguments, last: str | None) -> str:
    """Advice for who interrupted a run: which command continues it, and from which checkpoint."""
    if last is None:
        return "There is no checkpoint yet: the same command starts anew."
    if str(args.resume_from_checkpoint).lower() in ("none", "true", "last", "auto"):
        return f"Run the same command again: it continues from {last}."
    return f"Run it again with `--resume_from_checkpoint {last}`: it continues from there."


def end_processes(trainer: "Trainer") -> None:
    """
    End what would keep the processes of a trainer from ending; none of them can go on with it.

    Args:
        trainer (`DepthTrainer`): whose data loaders and process group end.
    """
    trainer.accelerator.wait_for_everyone()
    # Persistent workers that are freed with the trainer, which holds them in a cycle of references, are waited for for
    # five seconds each (torch 2.13).
    for loader in trainer.accelerator._dataloaders:
        iterator = getattr(getattr(loader, "base_dataloader", loader), "_iterator", None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    if trainer.args.world_size > 1:
        # `DistributedDataParallel` must be gone before its process group (torch 2.13): if the interpreter frees it at
        # exit, the destructor of gloo waits for a thread that waits for the GIL, and the process hangs. See
        # https://github.com/pytorch/pytorch/issues/56297 (destructors that wait) and .../issues/190489 (at exit).
        trainer.model_wrapped = trainer.model
        trainer.accelerator.free_memory()
        gc.collect()
