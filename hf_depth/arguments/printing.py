"""What a script prints: no run ends because nobody reads it any more, or because a letter cannot be written."""

import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger(__name__)

# Errors of a pipe and of a terminal whose other end is closed; a full disk may have room again.
NO_READER = (errno.EPIPE, errno.EIO)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """
    Meanwhile, nothing that is printed ends the script.

    - A character that the encoding of stdout lacks (Windows, `LC_ALL=C`) is printed as an escape, as on stderr.
    - A stream that is closed (`>&-`) is opened on nothing: its number would go to the next file.
    - Once its reader is gone (a `tee` that was killed, a terminal that was closed on a script in the background), what
      is printed is lost. On a full disk it is lost as long as there is no room.

    >>> with lasting_output():
    ...     print("step 1")
    step 1
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # until the process ends
    with contextlib.ExitStack() as guards:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and not hasattr(stream.write, "never_fails"):
                guards.enter_context(_guarded(stream))
        yield


@contextlib.contextmanager
def _guarded(stream: io.TextIOWrapper) -> Iterator[None]:
    errors = stream.errors
    stream.reconfigure(errors="backslashreplace")
    # In its attributes, as trackers capture output: an object in the place of the stream would not be of its class.
    own = {name: _never_failing(stream, getattr(stream, name)) for name in ("write", "flush")}
    vars(stream).update(own)
    try:
        yield
    finally:
        for name, method in own.items():
            if vars(stream).get(name) is method:  # else a tracker has put its own over it
                delattr(stream, name)
        try:
            stream.flush()
        except OSError:
            _discard(stream)  # or the interpreter tries once more at its end, and fails
        stream.reconfigure(errors=errors)


def _never_failing(stream: io.TextIOWrapper, method: Callable[..., Any]) -> Callable[..., Any]:
    is_told = False

    def call(*args: Any) -> Any:
        nonlocal is_told
        try:
            return method(*args)
        except OSError as error:
            if error.errno in NO_READER:
                _discard(stream)
            if not is_told:
                is_told = True
                logger.warning(f"{stream.name} cannot be written: {error}. What is printed is lost; the run goes on.")
            return len(args[0]) if args else None

    call.never_fails = True
    return call


def _discard(stream: io.TextIOWrapper) -> None:
    """What is written from here on, and what its buffers still hold, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
