"""
README.md, docs/ and docstrings: the rules for words of CONTRIBUTING.md that a machine can measure.

    PYTHONPATH=. python tests/test_words.py     # prints the figures of each page, and of the docstrings of each folder
"""

import ast
import re
from pathlib import Path

from absl.testing import parameterized

from helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "hf_depth").rglob("*.py"))
MOST_PAGES, MOST_WORDS, LONGEST_SENTENCE = 24, 20_000, 25
BLOCK = re.compile(r"^(?P<fence> *`{3,})[^\n]*\n.*?^(?P=fence)$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # its text is read, its address is not
CODE = re.compile(r"`[^`]*`")  # a word of a sentence, whose own dots and parentheses do not count
# Where a paragraph ends: an empty line, the next item of a list, a heading.
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)|(?<=\n)(?=#)")
MARK = re.compile(r"^\s*(?:#+|[-*]|\d+\.|>) +")
DOCTEST = re.compile(r"^ *>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^ *(?:Args|Returns|Raises|Yields):$", re.MULTILINE)
ITEM = re.compile(r"\n(?= +[\w`][^\n:]*:\s)")  # `name (type): text` begins a paragraph
NAME = re.compile(r" *(?:\w|`\w+`)[\w, *.]*(?:\([^\n]*?\))?:\s+")
END_OF_SENTENCE = re.compile(r"[.!?:][)\"”*]*\s+(?=[\"“(*]*[A-Z])")


def prose(markdown: str) -> str:
    """The text that is read as sentences: without code blocks, comments, tables, pictures and addresses of links."""
    for pattern in (BLOCK, COMMENT, TABLE, PICTURE):
        markdown = pattern.sub("", markdown)
    return CODE.sub("CODE", LINK.sub(r"\1", markdown))


def sentences(markdown: str) -> list[str]:
    """The sentences of a page. A heading and an item of a list are at least one; a colon before a capital ends one."""
    found = []
    for paragraph in PARAGRAPH.split(prose(markdown)):
        text = " ".join(MARK.sub("", paragraph).split())
        found += [sentence for sentence in END_OF_SENTENCE.split(text) if re.search(r"\w", sentence)]
    return found


def docstrings(module: Path) -> str:
    """The docstrings of a module as one text, with a paragraph for each argument and without examples."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) if isinstance(node, kinds)]
    text = "\n\n".join(filter(None, map(ast.get_docstring, nodes))).replace("[`", "`").replace("`]", "`")
    paragraphs = ITEM.sub("\n\n", SECTION.sub("\n", DOCTEST.sub("", text))).split("\n\n")
    return "\n\n".join(part[match.end() :] if (match := NAME.match(part)) else part for part in paragraphs)


def words(text: str) -> int:
    return sum(re.search(r"\w", word) is not None for word in text.split())


def begins_with_of(sentence: str) -> bool:
    return re.match(r"[\"“(*]*Of\b", sentence) is not None


def read(paths: list[Path]) -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def figures(markdown: str) -> dict[str, int]:
    """What a page has, counted in its sentences; `all words` are those of code and tables, too."""
    found = sentences(markdown)
    return {
        "all words": len(markdown.split()),
        "words": sum(map(words, found)),
        "sentences": len(found),
        "long": sum(words(sentence) > LONGEST_SENTENCE for sentence in found),
        "parentheses": sum(sentence.count("(") for sentence in found),
        "Of": sum(map(begins_with_of, found)),
    }


class WordsTest(parameterized.TestCase):
    def test_the_pages_are_few_and_short(self):
        found = {name: len(page.split()) for name, page in read(PAGES).items()}
        self.assertLessEqual(len(found), MOST_PAGES)
        self.assertLessEqual(sum(found.values()), MOST_WORDS, found)

    @parameterized.named_parameters((name, page) for name, page in read(PAGES).items())
    def test_no_sentence_begins_with_of(self, page):
        self.assertEmpty([sentence for sentence in sentences(page) if begins_with_of(sentence)])

    @parameterized.named_parameters((name, page) for name, page in read(PAGES).items())
    def test_no_sentence_is_long(self, page):
        self.assertEmpty([sentence for sentence in sentences(page) if words(sentence) > LONGEST_SENTENCE])

    def test_docstrings_have_no_long_sentence_and_none_that_begins_with_of(self):
        for path in MODULES:
            with self.subTest(path.relative_to(ROOT).as_posix()):
                found = sentences(docstrings(path))
                self.assertEmpty([one for one in found if words(one) > LONGEST_SENTENCE or begins_with_of(one)])

    @parameterized.parameters(
        ("One sentence. Another one.", ["One sentence", "Another one."]),
        ("It is 0.3 of `a. B`. (Of three, one.)", ["It is 0.3 of CODE", "(Of three, one.)"]),
        (
            "# Title\n\nText over\ntwo lines.\n\n- an item\n- a second",
            ["Title", "Text over two lines.", "an item", "a second"],
        ),
        ("Before:\n\n```python\nx = 1  # Of code. Not read.\n```\n\nafter.", ["Before:", "after."]),
        ("See [the page](a.md#b). ![Of a picture.](a.svg)", ["See the page."]),
        ("| a | table |\n|---|---|\n| Of it | nothing. Counts. |", []),
    )
    def test_sentences_are_found(self, markdown, expected):
        self.assertEqual(sentences(markdown), expected)


def table(texts: dict[str, str], total: str) -> None:
    """Print the figures of texts by their names, and of all of them."""
    rows = {name: figures(text) for name, text in texts.items()}
    rows[total] = {key: sum(row[key] for row in rows.values()) for key in figures("")}
    print(f"{'':44}", *(f"{key:>12}" for key in rows[total]), f"{'per 1,000':>12}")
    for name, row in rows.items():
        share = 1000 * row["parentheses"] / max(row["words"], 1)
        print(f"{name:44}", *(f"{count:12,}" for count in row.values()), f"{share:12.1f}")


if __name__ == "__main__":
    folders = sorted({path.parent for path in MODULES})
    own = {folder: "\n\n".join(docstrings(path) for path in MODULES if path.parent == folder) for folder in folders}
    table(read(PAGES), f"{len(PAGES)} pages")
    table({f"{folder.relative_to(ROOT)}/*.py": text for folder, text in own.items()}, "docstrings")
