"""What must not be printed, logged or published: passwords in addresses, paths of this machine."""

import re
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

# `https://user:password@host/…`: all between the protocol and the last `@` of the host.
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]+(?=@)")


def without_credentials(text: str) -> str:
    """
    A text whose addresses have `***` instead of a user and a password.

    >>> without_credentials("cannot read https://me:secret@example.org/texts.jsonl")
    'cannot read https://***@example.org/texts.jsonl'
    """
    return _CREDENTIALS.sub("***", text)


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
