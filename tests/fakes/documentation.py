"""The documentation as tests read it: the pages, their links and headings, and their code with the marks above it."""

import io
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
COMMANDS = ("sh", "bash", "console", "shell")
MARK = re.compile(r"<!-- (run|file|tested|not run)(?:: (.+?))? -->", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A piece of code of a page, and what the comment above it says of it.

    `mark` is one of `run`, `file` (`detail` is its name), `tested` (by which test) and `not run` (why); empty without a
    comment.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str
    detail: str

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The pages whose code is run: the README, and all of docs/."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(str(path.relative_to(ROOT)) for path in found)]


@cache
def documents_of(page: str) -> tuple[dict[str, Any], ...]:
    """The YAML documents of a page."""
    texts = [block.text for block in blocks_of(page) if block.language == "yaml"]
    return tuple(YAML(typ="safe").load(io.StringIO(text)) for text in texts)


def linked_pages() -> list[str]:
    """The pages whose links are checked: those, and what stands beside the code."""
    others = [
        *ROOT.glob("*.md"),
        *(path for top in ("examples", "deploy", "benchmarks", "tests") for path in (ROOT / top).rglob("*.md")),
    ]
    return sorted({*pages(), *(str(path.relative_to(ROOT)) for path in others)})


@cache
def tokens_of(page: str) -> tuple[Token, ...]:
    """A page's blocks in order."""
    return tuple(_MARKDOWN.parse((ROOT / page).read_text(encoding="utf-8")))


def blocks_of(page: str) -> list[Block]:
    """All code of a page, fenced or indented."""
    found, above = [], ""
    for token in tokens_of(page):
        if token.type in ("fence", "code_block"):
            mark = MARK.fullmatch(above.strip())
            words = (token.info.split() or [""]) if token.type == "fence" else [""]
            kind, detail = (mark[1], " ".join((mark[2] or "").split())) if mark else ("", "")
            found.append(Block(page, (token.map or [0])[0] + 1, words[0], token.content, kind, detail))
        above = token.content if token.type == "html_block" else ""
    return found


def links_of(page: str) -> Iterator[tuple[int, str]]:
    """The line and the target of each link and picture."""
    for token in tokens_of(page):
        for child in token.children or ():
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if isinstance(target, str) and child.type in ("link_open", "image"):
                yield (token.map or [0])[0] + 1, target


def inline_code_of(page: str) -> list[str]:
    """What stands in backticks in a page's text."""
    children = [child for token in tokens_of(page) for child in token.children or ()]
    return [child.content for child in children if child.type == "code_inline"]


@cache
def anchors_of(page: str) -> frozenset[str]:
    """What `#…` may name on a page: its headings, as GitHub writes them."""
    found: set[str] = set()
    for token, after in pairwise(tokens_of(page)):
        if token.type == "heading_open":
            slug = slug_of("".join(child.content for child in after.children or ()))
            count = sum(name == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", name) is not None for name in found)
            found.add(f"{slug}-{count}" if count else slug)
    return frozenset(found)


def slug_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken_links(page: str) -> list[str]:
    """The links of a page that lead nowhere, among those that stay in the repository."""
    broken = []
    for line, target in links_of(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        there = (ROOT / file).exists() and not file.startswith("..")
        if not there or (anchor and file.endswith(".md") and anchor not in anchors_of(file)):
            broken.append(f"{page}:{line}: {target}")
    return broken
