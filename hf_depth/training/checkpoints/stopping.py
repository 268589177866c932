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
from types import FrameType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from transformers import TrainerCallback

if TYPE_CHECKING:
    from ..trainer import DepthTrainer

logger = logging.getLogger(__name__)

REQUEUE_STATUS = 85  # exit status of a run to start again; sysexits.h (64-78) and shells (126-165) do not use it
SIGINT_STATUS = 128 + signal.SIGINT  # as in shells
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
SET_BY_LAUNCHERS = {"TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"}  # environment variables
PR_SET_PDEATHSIG = 1  # for Linux' prctl(2)


class Interrupted(SystemExit):
    """Raised if a signal ended the run. Its status is `REQUEUE_STATUS`, its `message` says how to go on."""

    def __init__(self, message: str):
        super().__init__(REQUEUE_STATUS)
        self.message = message


# ---- The whole of a script ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """
    Run a script so that it ends with one message and leaves no process behind.

    - SIGTERM and SIGUSR1 end it with the status `REQUEUE_STATUS`. During training, see [`stop_on_signals`].
    - Ctrl-C ends it with the status 130.
    - If its launcher (`accelerate launch`, `torchrun`) is killed, it ends, too (on Linux).
    - If one of several processes fails, it ends at once, so that the launcher ends the others.
    """
    _end_with_launcher()
    with _handlers(_interrupt):
        try:
            yield
        except KeyboardInterrupt:
            advice = "Run the same command again: it continues from its last checkpoint, if there is one."
            _end_process(SIGINT_STATUS, f"Interrupted by Ctrl-C: nothing was saved. {advice}")
        except Interrupted as interrupt:
            _end_process(REQUEUE_STATUS, interrupt.message)
        except BaseException as error:
            if dist.is_initialized():
                if not isinstance(error, SystemExit):
                    traceback.print_exc()
                status = getattr(error, "code", 1)
                _exit(status if isinstance(status, int) else 1)
            raise


def _interrupt(signum: int, frame: FrameType | None) -> None:
    name = signal.Signals(signum).name
    raise Interrupted(f"Ended by {name} outside of training. Run the same command again to continue.")


def _end_process(status: int, message: str) -> None:
    """Print a message on the first process and end this process."""
    for signum in (signal.SIGINT, *STOP_SIGNALS):
        signal.signal(signum, signal.SIG_IGN)  # a launcher signals the others when the first process has ended
    if os.environ.get("RANK", "0") == "0":
        print(f"\n{message} (Exit status {status}.)", file=sys.stderr, flush=True)
    _exit(status)


def _exit(status: int) -> None:
    if not dist.is_initialized():
        sys.exit(status)
    # Freeing the process group while others wait for it can hang. So run the exit functions (checkpoints, W&B) and
    # skip the rest, as `multiprocessing` does.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_with_launcher() -> None:
    """Let this process end when its launcher does: on Linux, the kernel then sends it a SIGTERM."""
    if sys.platform == "linux" and SET_BY_LAUNCHERS & os.environ.keys():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        try:  # the launcher answers where the processes meet, unless it was killed during the imports
            address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            socket.create_connection(address, timeout=10).close()
        except ConnectionRefusedError:
            _end_process(1, "The launcher of this process was killed before training began.")
        except OSError:
            pass  # a wrong address is reported where it is used


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
def stop_on_signals(trainer: "DepthTrainer") -> Iterator[None]:
    """
    Save a checkpoint at the end of the step and end the run, if SIGTERM or SIGUSR1 arrives during training.

    It is enough that one of several processes gets the signal. An evaluation that is due at this step is made first.
    A signal during an evaluation takes effect at the next step, one after the last step when the model is saved.

    Raises:
        [`Interrupted`]: after a signal. Process group and trackers of the trainer are ended then.
    """
    callback = StopOnSignal()
    trainer.add_callback(callback)
    try:
        with _handlers(callback.receive):
            yield
            name = callback.requested()
            if name is not None:
                advice = "Run the same command again for the remaining steps, such as evaluation."
                raise Interrupted(f"{name} after the last step: the trained model is saved. {advice}")
    except Interrupted:
        trainer.end()
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
            flag = torch.tensor([signum], dtype=torch.int32)  # on the CPU: no process waits for its device
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group)
            signum = int(flag)
        return signal.Signals(signum).name if signum else None

    def on_train_begin(self, args, state, control, **kwargs):
        if dist.is_initialized() and dist.get_backend() != "gloo":
            self.group = dist.new_group(backend="gloo")

    def on_step_end(self, args, state, control, **kwargs):
        name = self.requested()
        if name is None or state.global_step >= state.max_steps:  # after the last step, the model is saved anyway
            return
        self.name = name
        logger.warning(f"{name}: saving a checkpoint at step {state.global_step} and ending.")
        control.should_training_stop = control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        self.is_saved = self.name is not None

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.name is not None:  # the step is finished, the end of the epoch belongs to the next run
            control.should_log = control.should_evaluate = False
            # With `save_strategy` best, an evaluation saves a checkpoint only if the score is the best.
            control.should_save = not self.is_saved

    def on_train_end(self, args, state, control, **kwargs):
        if self.name is not None:
            last = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            advice = f"Run the same command again: it continues from {last}."
            if str(args.resume_from_checkpoint).lower() not in ("none", "true", "last", "auto"):
                advice = f"Run it again with `--resume_from_checkpoint {last}`."
            raise Interrupted(f"{self.name} at step {state.global_step}. {advice}")


def end_processes(trainer: "DepthTrainer") -> None:
    """End the data loaders and the process group of a trainer, so that its processes can end."""
    trainer.accelerator.wait_for_everyone()
    # Freed with the trainer, each persistent worker would be waited for for five seconds (torch 2.13).
    for loader in trainer.accelerator._dataloaders:
        iterator = getattr(getattr(loader, "base_dataloader", loader), "_iterator", None)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    if trainer.args.world_size > 1:
        # Free `DistributedDataParallel` before its process group (torch 2.13): at exit, the destructor of gloo would
        # wait for a thread that waits for the GIL. See https://github.com/pytorch/pytorch/issues/190489.
        trainer.model_wrapped = trainer.model
        trainer.accelerator.free_memory()
        gc.collect()
