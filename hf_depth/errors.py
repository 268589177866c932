"""
Telling mistakes of the user from defects. Scripts print a mistake as one message; a defect keeps its traceback.

A mistake is

- an error that a `raise` statement of this package raises, also in a worker process. Bad input gets a `ValueError`
  that names it and says what to do. An `AssertionError` and its like are defects;
- an error from outside: a file, a name on the Hub, a missing package, memory of a device.

Any other error of Python or of a library (`int("x")`, shapes that do not fit) is a defect.
"""

import dis
from pathlib import Path

FOR_PROGRAMMERS = (AssertionError, AttributeError, LookupError, NotImplementedError)
LOST_CONNECTIONS = (BrokenPipeError, ConnectionAbortedError, ConnectionResetError)
PACKAGE = Path(__file__).resolve().parent


def user_message(error: Exception) -> str | None:
    """
    Return the message for the user about an error; `None` for a defect, whose traceback should be shown.

    >>> user_message(KeyError("input_ids")) is None
    True
    >>> user_message(FileNotFoundError("there is no file 'texts.txt'"))
    "there is no file 'texts.txt'"
    """
    if type(error).__name__ == "OutOfMemoryError":  # an error of torch, which is slow to import
        return (
            f"{error}\nUse a smaller `--per_device_train_batch_size` with more `--gradient_accumulation_steps`, "
            "`--gradient_checkpointing`, or shorter sequences."
        )
    is_outside = isinstance(error, OSError | ImportError) and not isinstance(error, LOST_CONNECTIONS)
    if is_outside or type(error).__module__ == "datasets.exceptions":
        is_told = error.__cause__ is None or str(error.__cause__) in str(error)
        return str(error) if is_told else f"{error}\nThe cause: {error.__cause__}"
    if isinstance(error, FOR_PROGRAMMERS):
        return None
    if _is_raised_here(error) or isinstance(error, ValueError) and _is_of_worker(error):
        # The message of a `DataLoader` worker includes its traceback.
        return str(error).rpartition(f"\n{type(error).__name__}: ")[2].strip()
    return None


def is_lost_connection(error: Exception) -> bool:
    """Return whether an error means that another process of the run has ended. That process prints the reason."""
    names = [kind.__name__ for kind in type(error).__mro__]
    return isinstance(error, LOST_CONNECTIONS) or "DistError" in names or "gloo" in str(error)


def _is_raised_here(error: Exception) -> bool:
    """Return whether a `raise` statement of this package raised the error."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return PACKAGE in Path(code.co_filename).parents and dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _is_of_worker(error: Exception) -> bool:
    """Return whether an error comes from a worker process of `datasets` or of a `DataLoader`."""
    return hasattr(error.__cause__, "tb") or "\nOriginal Traceback" in str(error)
