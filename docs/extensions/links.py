"""Links of the pages that lead out of docs/: to the files of the repository, which the built site does not hold."""

import os
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[(?P<text>[^][]+)\]\((?P<target>\.\./[^)\s]+)\)")


def outward_links(text: str, page: Path, docs: Path, repository: str | None) -> str:
    """
    A page with its links to files outside of `docs` as addresses in the repository, or as text if that has none.

    Args:
        text: the page in Markdown.
        page: its path.
        docs: the folder of all pages.
        repository: the address of the repository.
    """

    def replace(match: re.Match) -> str:
        target = Path(os.path.normpath(page.parent / match["target"].partition("#")[0]))
        if target == docs / "README.md":  # which index.rst includes
            return f"[{match['text']}]({os.path.relpath(docs / 'index.rst', page.parent)})"
        if target.is_relative_to(docs):
            return match.group()
        if repository is None:
            return match["text"]
        kind = "tree" if target.is_dir() else "blob"
        return f"[{match['text']}]({repository.rstrip('/')}/{kind}/main/{target.relative_to(docs.parent).as_posix()})"

    return LINK.sub(replace, text)


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("repository", None, "env", [str, type(None)])

    def replace(page: Path, source: list[str]) -> None:
        source[0] = outward_links(source[0], page, Path(app.srcdir), app.config.repository)

    app.connect("source-read", lambda app, docname, source: replace(Path(app.env.doc2path(docname)), source))
    return {"parallel_read_safe": True}
