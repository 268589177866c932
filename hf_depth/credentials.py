"""What must not be printed, logged or published: passwords and tokens in addresses, paths of this machine."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

# Of an address: what stands before the last `@` of the host, and the query (`?token=…`).
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]+(?=@)")
# The value of a flag such as `--api_key`, and tokens of the Hub.
_SECRETS = re.compile(r"(--\w*(?:token|key|password|secret)[= ])\S+|\bhf_\w{20,}")
_QUERY = re.compile(r"(://[^\s?'\"`]*\?)[^\s'\"`]+")


def without_credentials(text: str) -> str:
    """
    A text whose addresses have `***` instead of a user and a password, and instead of their query.

    >>> without_credentials("cannot read https://me:secret@example.org/texts.jsonl?token=secret")
    'cannot read https://***@example.org/texts.jsonl?***'
    """
    return _QUERY.sub(r"\1***", _CREDENTIALS.sub("***", text))


def is_hub_name(name: str) -> bool:
    """Whether a name is one of a repository on the Hub, and of no folder here."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not Path(name).exists()


def told_name(name: str | None) -> str | None:
    """A name on the Hub, or the last part of a path: what may be published."""
    return name if not name or is_hub_name(name) else Path(name).resolve().name


def told_command(arguments: Sequence[str]) -> str | None:
    """
    The command of a script as it may be published: without secrets, and of a file, folder or address its name alone.

    Args:
        arguments: such as `sys.argv`.

    Returns:
        `None` if it is no script that was run, but a notebook, a test, ….

    >>> told_command(["/data/train.py", "--train_file=/data/novels.txt", "--base", "google/t5-v1_1-base"])
    'python train.py --train_file=novels.txt --base google/t5-v1_1-base'
    """
    script, *others = arguments
    if not script.endswith(".py") or "site-packages" in script:
        return None
    parts = [re.fullmatch(r"(--\w+=)?(.*)", argument, re.DOTALL).groups("") for argument in others]
    is_told = ["/" not in value or is_hub_name(value) for _, value in parts]
    names = [value if told else _last_part(value) for (_, value), told in zip(parts, is_told, strict=True)]
    told = [flag + name for (flag, _), name in zip(parts, names, strict=True)]
    return _SECRETS.sub(r"\1***", shlex.join(["python", Path(script).name, *told]))


def _last_part(path: str) -> str:
    """
    >>> _last_part("/data/texts/"), _last_part("https://me:secret@example.org/novels.txt?key=1")
    ('texts', 'novels.txt')
    """
    return path.partition("?")[0].rstrip("/").rpartition("/")[2]
