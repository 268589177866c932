"""Signals to a script: which end it, and how. During training, see `training.checkpoints.stopping`."""

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

import torch.distributed as dist

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


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """
    Run a script so that it ends with one message and leaves no process behind.

    - SIGTERM and SIGUSR1 end it with the status `REQUEUE_STATUS`. During training, a checkpoint is saved first.
    - Ctrl-C ends it with the status 130.
    - If its launcher (`accelerate launch`, `torchrun`) is killed, it ends, too (on Linux).
    - If one of several processes fails, it ends at once, so that the launcher ends the others.
    """
    _end_with_launcher()
    with handle_signals(_interrupt):
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
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
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
