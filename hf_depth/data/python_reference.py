"""A text to train a first model on without any download: the Python language reference that every CPython has."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import takewhile

from .sentences import get_sentence_splitter

# A document ends at the first heading past the lower number of sentences, or at the first paragraph past the upper.
MIN_DOCUMENT_SENTENCES, MAX_DOCUMENT_SENTENCES = 4, 12

_HEADING = re.compile(r"(?P<title>\S.*)\n([*=\-~^\"#])\2+")
_ITEM = re.compile(r"\n(?=[ ]*(?:[*•-]|\d{1,2}\.|\[\d+\])[ ])")
_ITEM_MARK = re.compile(r"(?:[*•-]|\d{1,2}\.|\[\d+\])\s+")
_LABEL = re.compile(r"(?:Note|Warning|Important|CPython implementation detail):\s*")
_TERM = re.compile(r"\S.*\n(?=[ ]+\S)")
_BOILERPLATE = re.compile(
    r"(?:Changed|New|Added|Deprecated|Removed)\b.*?\b(?:version|since|in) \d|See also|[*]*PEP \d+|Raises an audit"
)
_SENTENCE = re.compile(r"(?=[A-Z“_]|[a-z][\w.]*\(\))(?:\S+\s+){3,}\S*[.!?][)”’]*")
_CODE = re.compile(r"::=|>>>|[{}<>\[\]=|\\^~#@$%&*+\"`]")
MAX_CODE = 0.03  # characters of a sentence that may be code, as a part of all


def python_reference_documents() -> list[dict[str, str]]:
    """
    The prose of the Python language reference, from the topics of Python's own `help()` (`pydoc_data.topics`).

    Headings, grammar, tables, code, signatures and version notes are left out. A paragraph that several topics have is
    taken once. The text depends on the versions of Python and nupunkt only.

    Returns:
        `list[dict]`: documents of several sentences, with `text` (paragraphs, separated by newlines), `title` (the
        heading above the text) and `source` (`"reference"`).

    Raises:
        `ImportError`: if this Python comes without `pydoc_data`.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "This Python comes without `pydoc_data.topics`, the text of the default corpus. Install the full standard "
            "library, or pass a text of your own (`train_file` or `dataset_name`)."
        ) from error
    seen: set[str] = set()
    documents = (document for name in sorted(topics) for document in prose_documents(blocks(topics[name]), name, seen))
    return [document | {"source": "reference"} for document in documents]


def blocks(text: str) -> list[str]:
    """What blank lines separate."""
    return re.split(r"\n[ \t]*\n", text)


def prose_documents(
    blocks: Iterable[str], name: str, seen: set[str], min_sentences: int = MIN_DOCUMENT_SENTENCES
) -> Iterator[dict[str, str]]:
    """
    Cut blocks of one text into documents, and leave out of them what is no prose.

    Args:
        blocks: paragraphs, lists, code; underlined headings.
        name: the title of what stands before the first heading.
        seen: the paragraphs of the documents so far, which are taken once; grows.
        min_sentences: of a document; a shorter one goes on past the next heading, or is left out at the end.
    """
    title, next_title, paragraphs, num_sentences = name, name, [], 0
    for block in blocks:
        heading = _HEADING.fullmatch(block.strip())
        if heading:
            next_title = _without_markup(heading["title"])
        if num_sentences >= (min_sentences if heading else MAX_DOCUMENT_SENTENCES):
            yield {"text": "\n".join(paragraphs), "title": title}
            paragraphs, num_sentences = [], 0
        for item in _ITEM.split(block):
            sentences = _prose(item)
            paragraph = " ".join(sentences)
            if sentences and paragraph not in seen:
                seen.add(paragraph)
                title = title if paragraphs else next_title
                paragraphs.append(paragraph)
                num_sentences += len(sentences)
    if num_sentences >= min_sentences:
        yield {"text": "\n".join(paragraphs), "title": title}


def _prose(block: str) -> list[str]:
    """The sentences of a block up to the first that is no prose, such as one that introduces an example."""
    text = textwrap.dedent(block).strip()
    item_mark = _ITEM_MARK.match(text)
    text = text[item_mark.end() :] if item_mark else text
    if _BOILERPLATE.match(text) or '""' in text:  # a literal that holds quotation marks: cannot be told from markup
        return []
    term = None if item_mark else _TERM.match(text)  # of an indented definition
    text = text[term.end() :] if term else text
    text = re.sub(r"(?<=\w)-\n\s*(?=\w)", "-", text)
    text = _LABEL.sub("", re.sub(r"\s+", " ", _without_markup(text)), count=1)
    return list(takewhile(_is_prose, get_sentence_splitter("en")(text)))


def _is_prose(sentence: str) -> bool:
    """Whether a sentence begins and ends as one, and may name code but does not consist of it."""
    if '"' in sentence or not _SENTENCE.fullmatch(sentence):
        return False
    return len(_CODE.findall(sentence)) <= MAX_CODE * len(sentence)


def _without_markup(text: str) -> str:
    """Drop the marks of emphasis, literals and footnotes: `*x*`, `**x**`, `"x"`, `[1]`."""
    text = re.sub(r"\s+\[\d+\]", "", text)
    text = re.sub(r"(?<![\w*])(\*\*?)(?=\S)([^*]+?)(?<=\S)\1(?![\w*])", r"\2", text)
    return re.sub(r"([\"`])([^\"`]*)\1", r"\2", text)
