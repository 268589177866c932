"""Passwords in addresses, which must not be printed, logged or saved."""

import re

# `https://user:password@host/…`: all between the protocol and the last `@` of the host.
_CREDENTIALS = re.compile(r"(?<=://)[^\s/]+(?=@)")


def without_credentials(text: str) -> str:
    """
    A text whose addresses have `***` instead of a user and a password.

    >>> without_credentials("cannot read https://me:secret@example.org/texts.jsonl")
    'cannot read https://***@example.org/texts.jsonl'
    """
    return _CREDENTIALS.sub("***", text)
