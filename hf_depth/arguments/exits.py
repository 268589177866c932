"""How a script ends: a user's mistake with one message and exit status 2, a bug with its traceback."""

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled

from ..credentials import without_credentials
from .printing import lasting_output

EXIT_STATUS = 2  # that of argparse
SHOW_TRACEBACK = "HF_DEPTH_TRACEBACK"  # environment variable
PATIENCE = 3.0  # seconds that the other processes leave to the first one to print its message

# What is raised for programmers; a check raises none of them.
NO_CHECK = (AssertionError, AttributeError, LookupError, NotImplementedError)
# What libraries raise for a name, a file or an account, wherever they do.
LIBRARY_ERRORS = (DatasetsError, EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled)
# Parts of libraries that check settings and names: what they refuse by a `raise` comes from the arguments.
SETTINGS_MODULES = re.compile(
    r"/transformers/(training_args|trainer|integrations/|optimization|generation/configuration_utils|utils/hub"
    r"|utils/import_utils|configuration_utils|models/auto/)"
    r"|/accelerate/|/torch/optim/|/huggingface_hub/|/wandb/|/datasets/(load|builder|data_files|packaged_modules/)"
)
PACKAGE = Path(__file__).resolve().parents[1]

_FRAME = re.compile(r'File "(.+)", line (\d+), in .+\n\s+(.+)')
_LAST_LINE_OF_TRACEBACK = re.compile(r"^[\w.]+: (.+)", re.MULTILINE | re.DOTALL)


class _Place(NamedTuple):
    """Where an exception was raised, and what it says."""

    file: str
    line: int
    source: str
    message: str


def run_script(main: Callable[[], Any]) -> None:
    """
    Run a script: a user's mistake ends it with one message and exit status 2, any other error with its traceback.

    A mistake is what [`user_message`] takes for one. With the environment variable HF_DEPTH_TRACEBACK=1 it keeps its
    traceback as well. Of several processes on a machine, one prints the message; others that only lose their
    connection to that one end with the same status and print nothing. What cannot be printed ends no script, see
    [`lasting_output`].

    Args:
        main: the script's main function.

    Raises:
        `SystemExit`: with code 2 after a user's mistake.

    >>> run_script(lambda: None)
    """
    with lasting_output():
        _run(main)


def _run(main):
    try:
        main()
        return
    except Exception as error:
        message = user_message(error)
        is_consequence = message is None and _is_lost_connection(error) and _is_reported()
        is_a_bug = message is None and not is_consequence
        if is_a_bug or os.environ.get(SHOW_TRACEBACK, "0") not in ("", "0"):
            raise
    if is_consequence:
        sys.exit(EXIT_STATUS)
    # Not inside `except`: the model and its process group, which the traceback holds, are freed before the exit.
    stop(message)


def stop(message: str, usage: str = "") -> NoReturn:
    """
    Print the message of a user's mistake to stderr, and exit with status 2.

    Of the processes that `torchrun` or `accelerate launch` started on a machine, one prints it: the first, if it fails
    as well. (What it could not make, the others lack, which says less.) Each leaves its message in its error file,
    from which the launcher's table of failures quotes it.

    Args:
        message: what is wrong and what to do. Passwords in addresses are masked.
        usage: printed before it.
    """
    message = without_credentials(message)
    is_first = _is_first()
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file is not None and Path(error_file).parent.is_dir():
        Path(error_file).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")
    if is_first:
        print(f"{usage}{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_STATUS)


def user_message(error: Exception) -> str | None:
    """
    What to tell the user about an exception; `None` for a bug.

    A user's mistake is what a `raise` statement of this package refuses; what a library refuses that checks its
    settings, files and names; a missing package; too little memory of a device.

    >>> user_message(KeyError("input_ids")) is None
    True
    """
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"{error}\nUse a smaller `--per_device_train_batch_size` with more `--gradient_accumulation_steps`, "
            "`--gradient_checkpointing`, or shorter sequences."
        )
    place = _place(error)
    if place is None:
        return None
    is_check = place.source.startswith("raise ") and not isinstance(error, NO_CHECK)
    if is_check and PACKAGE in Path(place.file).parents:
        return place.message
    if (
        isinstance(error, LIBRARY_ERRORS)
        or is_check
        and (isinstance(error, ImportError) or SETTINGS_MODULES.search(place.file))
    ):
        is_told = error.__cause__ is None or str(error.__cause__) in place.message
        cause = "" if is_told else f"\nThe cause: {error.__cause__}"
        library = "/".join(Path(place.file).parts[-2:])
        return f"{place.message}{cause}\n({library}, line {place.line}; {SHOW_TRACEBACK}=1 shows the traceback.)"
    return None


def _report_mark() -> Path | None:
    """The file that marks a message as printed, in a folder that the launcher made for all processes of a machine."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    folder = None if error_file is None else Path(error_file).parent.parent
    return folder / "hf_depth_error" if folder is not None and folder.is_dir() else None


def _is_reported() -> bool:
    """Whether another process on this machine has printed a message."""
    mark = _report_mark()
    return mark is not None and mark.exists()


def _is_first() -> bool:
    """Whether no other process on this machine prints a message, and this one is to do so."""
    mark = _report_mark()
    if mark is None:
        return True
    if os.environ.get("LOCAL_RANK", "0") != "0":
        deadline = time.monotonic() + PATIENCE
        while not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the launcher has ended
        return True
    return True


def _is_lost_connection(error: Exception) -> bool:
    """Whether an operation of several processes failed, as it does when one of them ends."""
    return isinstance(error, torch.distributed.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error)


def _place(error: Exception) -> _Place | None:
    """Where an exception was raised; of one that a worker process passed on, where it was raised there."""
    # `multiprocess` keeps the traceback of a worker in the cause, the DataLoader of torch in the message.
    remote = getattr(error.__cause__, "tb", None) or (str(error) if "\nOriginal Traceback" in str(error) else None)
    if remote is not None:
        frames = list(_FRAME.finditer(remote))
        last = _LAST_LINE_OF_TRACEBACK.search(remote, frames[-1].end()) if frames else None
        if last is None:
            return None
        file, line, source = frames[-1].groups()
        return _Place(file, int(line), source, last[1].strip().strip('"'))
    frames = traceback.extract_tb(error.__traceback__)
    return _Place(frames[-1].filename, frames[-1].lineno, frames[-1].line or "", str(error)) if frames else None
