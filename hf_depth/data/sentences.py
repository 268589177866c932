"""
Text to sentences, offline: by nupunkt for English, by sentencex for the other languages.

DEPTH reads, shuffles and restores sentences; where a sentence ends is decided here and nowhere else.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate

import nupunkt
import sentencex
from nupunkt.layout import iter_blocks

from ..suggestions import suggestion

# Languages for which sentencex has rules of its own; for any other code it silently applies the English ones.
SENTENCEX_LANGUAGES = frozenset(
    "am ar bg bn ca da de el es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split()
)

# A line break after a closed sentence. Quotation marks can keep sentencex from seeing any boundary for the rest of its
# input, so that it gets as little text at once as possible.
CLOSED_LINE = re.compile(r"(?<=[.!?…。！？।؟])\s*\n|(?<=[.!?…。！？।؟][\"'”’»」』)\]])\s*\n")

# White space before a full stop. sentencex (1.0.32) takes its last byte for a character, and panics on "A\u00a0.".
WIDE_SPACE_BEFORE_STOP = re.compile(r"[^\S\x00-\x7f](?=\s*\.)")


_version = functools.cache(version)  # it reads files


@dataclass(frozen=True)
class SentenceSplitter:
    """
    Gives the sentences of a text in order, none of them empty, without the white space around them. No other character
    is lost. Made by [`get_sentence_splitter`].

    Args:
        language (`str`, defaults to `"en"`): ISO 639-1 code.

    Attributes:
        version (`str`): the library with the rules and its version. It makes part of the fingerprint of what
            `datasets.map` prepares: after an upgrade text is split anew.
    """

    language: str = "en"
    version: str = field(init=False)

    def __post_init__(self):
        library = "nupunkt" if self.language == "en" else "sentencex"
        object.__setattr__(self, "version", f"{library} {_version(library)}")

    def __call__(self, text: str) -> list[str]:
        """
        Args:
            text (`str`): a document.

        Returns:
            `list[str]`: its sentences.
        """
        if self.language == "en":
            return nupunkt.load("default").texts(text, paragraph_breaks=True, line_breaks=True)
        blocks = (text[start:end] for start, end in iter_blocks(text, paragraph_breaks=True, line_breaks=True))
        paragraphs = (paragraph for block in blocks for paragraph in CLOSED_LINE.split(block))
        sentences = (sentence for paragraph in paragraphs for sentence in self._segment(paragraph))
        return [stripped for sentence in sentences if (stripped := sentence.strip())]

    def _segment(self, paragraph: str) -> list[str]:
        """The sentences by sentencex, with the white space between them."""
        try:
            segments = sentencex.segment(self.language, WIDE_SPACE_BEFORE_STOP.sub(" ", paragraph))
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust; no `Exception`, and nowhere to be imported
                raise
            raise ValueError(
                f"sentencex cannot split the {self.language!r} text {paragraph!r:.200}: {error}. Remove what is "
                "unusual in it, and report it to https://github.com/wikimedia/sentencex."
            ) from None
        ends = accumulate(map(len, segments))
        return [paragraph[end - len(segment) : end] for segment, end in zip(segments, ends, strict=True)]


def get_sentence_splitter(language: str = "en") -> Callable[[str], list[str]]:
    """
    A sentence splitter that needs no download: nupunkt for English, sentencex for the other languages.

    Blank lines, headings and list items end a sentence whether or not they end with a full stop. The splitter can be
    pickled, and two splitters of one language have the same fingerprint for `datasets.map`.

    Args:
        language (`str`, defaults to `"en"`): ISO 639-1 code, such as `"en"` or `"de"`.

    Returns:
        `SentenceSplitter`: a function that takes a text and returns the list of its sentences.

    Raises:
        `ValueError`: if there are no rules for the language.

    Example:

    >>> from hf_depth.data.sentences import get_sentence_splitter
    >>> get_sentence_splitter("en")("Mr. Bennet made no answer. Call me Ishmael.")
    ['Mr. Bennet made no answer.', 'Call me Ishmael.']
    """
    known = sorted(SENTENCEX_LANGUAGES | {"en"})
    if language not in known:
        raise ValueError(
            f"There are no sentence rules for the language {language!r}.{suggestion(language, known, cutoff=0.5)} "
            f"Known languages: {', '.join(known)}. For another one, take the nearest of them."
        )
    return SentenceSplitter(language)
