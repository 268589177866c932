"""
Text to sentences, offline: by nupunkt for English, by sentencex for the other languages.

DEPTH reads, shuffles and restores sentences; where a sentence ends is decided here and nowhere else.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

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
_CLOSED_LINE = re.compile(r"(?<=[.!?…。！？।؟])\s*\n|(?<=[.!?…。！？।؟][\"'”’»」』)\]])\s*\n")


@dataclass(frozen=True)
class SentenceSplitter:
    """
    Gives the sentences of a text in order, none of them empty, without the white space around them. No other character
    is lost. Made by [`get_sentence_splitter`].

    Args:
        language (`str`, defaults to `"en"`): ISO 639-1 code.
    """

    language: str = "en"

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
        paragraphs = (paragraph for block in blocks for paragraph in _CLOSED_LINE.split(block))
        sentences = (sentence for paragraph in paragraphs for sentence in sentencex.segment(self.language, paragraph))
        return [stripped for sentence in sentences if (stripped := sentence.strip())]


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
