"""How a script ends: a mistake of the user with one message and exit status 2, a defect with its traceback."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..credentials import without_credentials
from ..errors import is_lost_connection, user_message
from .printing import lasting_output

EXIT_STATUS = 2  # that of argparse
SHOW_TRACEBACK = "HF_DEPTH_TRACEBACK"  # environment variable
PATIENCE = 3.0  # seconds that other processes leave to the first one


def run_script(main: Callable[[], Any]) -> None:
    """
    Run a script. A mistake of the user, as `hf_depth.errors` tells it, ends it with one message and exit status 2. Any
    other error keeps its traceback, and so does a mistake with the environment variable HF_DEPTH_TRACEBACK=1. What
    cannot be printed ends no script, see [`lasting_output`].

    Args:
        main: the script's main function.

    Raises:
        `SystemExit`: with code 2 after a mistake.

    >>> run_script(lambda: None)
    """
    with lasting_output():
        try:
            main()
            return
        except Exception as error:
            message = user_message(error)
            if message is None or os.environ.get(SHOW_TRACEBACK, "0") not in ("", "0"):
                _leave_it_to_the_first(is_lost_connection(error))
                raise
        # Not inside `except`: the model and its process group, which the traceback holds, are freed before the exit.
        stop(message)


def stop(message: str, usage: str = "") -> NoReturn:
    """
    Print a mistake of the user to stderr, and exit with status 2.

    Args:
        message: what is wrong and what to do. Passwords and tokens in addresses are masked.
        usage: printed before it.
    """
    message = without_credentials(message)
    # From there the launcher's table of failures quotes it.
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file is not None and Path(error_file).parent.is_dir():
        Path(error_file).write_text(json.dumps({"message": message, "timestamp": int(time.time())}), encoding="utf-8")
    _leave_it_to_the_first()
    print(f"{usage}{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_STATUS)


def _leave_it_to_the_first(is_consequence: bool = False) -> None:
    """
    Wait, as one of several processes on a machine, unless this is the first one, or what it fails of is that another
    one has ended: then the launcher ends this one meanwhile, and one of them prints. (What the first one could not
    make, the others lack, which says less.)
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or is_consequence and "LOCAL_RANK" in os.environ:
        time.sleep(PATIENCE)
