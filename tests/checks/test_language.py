"""Phrases that no native engineer would write, in code, messages and documentation.

The list is short on purpose: each entry was frequent once, and has a plain word in its place. The history in
CHANGELOG.md is left as it is.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from checks.sources import fail_for
from fakes.documentation import ROOT

FOLDERS = (
    *("manager", "sdk", "training_services", "trial_keeper"),
    *("tests", "docs", "examples", "benchmarks", "deploy", "webui", ".ci"),
)
SUFFIXES = {
    *(".py", ".md", ".sql", ".html", ".js", ".ts", ".tsx", ".css", ".yml", ".yaml", ".toml", ".json"),
    *(".sh", ".service", ""),
}
NOT_OURS = {"CHANGELOG.md", Path(__file__).name}
IGNORED = {"__pycache__", "node_modules", "static"}

_GAP = r"""(?:[\s#*]|--|"\s*\n\s*f?")+"""
"""Between two words, also over the end of a line in a comment, in SQL or in a text of several pieces."""
_PLACES = r"(?:a|an|the|one|each|another|this|that|its|GPU|stdout|stderr|disk|top)\b"
BANNED = {
    "go on": (rf"\b[Gg]o(?:es|ing)?{_GAP}on\b(?!{_GAP}{_PLACES})", "continue, keep running, resume"),
    "of others": (rf"\bof{_GAP}others\b", "of other users, another process (pid …), untrusted"),
    "is told": (
        rf"\b(?:[Ii]s|[Ww]as|[Aa]re|[Ww]ere|be(?:en)?|[Bb]eing)(?:{_GAP}(?:not|never))?{_GAP}told\b(?!{_GAP}(?:apart|from)\b)",
        "receives, is notified, is sent, is reported",
    ),
    "nobody": (r"(?<![~\w])(?!(?<=[\"'`])nobody[\"'`])[Nn]obody\b(?!-)", "no one, no process, no user, never"),
    "belongs into": (rf"\bbelongs?{_GAP}into\b", "belongs in, is part of"),
    "from there": (r"cannot \w+ from there\b", "cannot be paused while NO_MORE_TRIAL"),
    "no such trials": (rf"\bhas{_GAP}no{_GAP}such{_GAP}trials\b", "No running trials in X."),
    "busy with process": (rf"\bbusy{_GAP}with{_GAP}process\b", "in use by another process (pid …)"),
    "being left": (rf"\bit{_GAP}is{_GAP}being{_GAP}left\b", "released: no experiment uses this node"),
    "has run for": (rf"\bhas{_GAP}run{_GAP}for\b", "elapsed"),
    "wish": (r"\b[Ww]ish(?:es|ed|ing)?\b", "want, request"),
}
"""What is looked for, and what to write instead."""
_ANY = re.compile(rf"\b(?=[a-cg-inowA-CG-INOW])(?:{'|'.join(f'({pattern})' for pattern, _ in BANNED.values())})")
"""All of them; each begins with one of these letters."""


def texts() -> Iterator[Path]:
    """The files that people wrote."""
    yield from (path for path in ROOT.iterdir() if path.suffix in SUFFIXES and path.is_file())
    for top in FOLDERS:
        for folder, folders, names in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name not in IGNORED]
            yield from (path for name in names if (path := Path(folder, name)).suffix in SUFFIXES)


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Each banned phrase with the number of its line."""
    phrases = list(BANNED)
    for match in _ANY.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, phrases[(match.lastindex or 0) - 1]


def test_no_text_has_a_banned_phrase() -> None:
    ours = [path for path in texts() if path.name not in NOT_OURS and not path.name.startswith(".")]
    assert len(ours) > 500
    fail_for(
        (
            f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write instead: {BANNED[phrase][1]}"
            for path in ours
            for line, phrase in found_in(path.read_text(encoding="utf-8", errors="replace"))
        ),
        "reword these:",
    )


def test_a_banned_phrase_is_found() -> None:
    for text, phrase in {
        "its trials go on": "go on",
        "Going on with it": "go on",
        "the run goes\n    # on after a resume": "go on",
        "in use by a process of others": "of others",
        "busy with process 7": "busy with process",
        "the tuner is not told": "is told",
        "it cannot pause from there": "from there",
        "experiment X has no such trials": "no such trials",
        "it is being left": "being left",
        "it has run for 5 s": "has run for",
        "the keeper was told": "is told",
        '"the keeper is "\n    f"told"': "is told",
        "what is to be\n-- told": "is told",
        "Nobody needs it": "nobody",
        "'nobody needs it'": "nobody",
        "it belongs into the file": "belongs into",
        "if so wished": "wish",
    }.items():
        assert [found for _, found in found_in(text)] == [phrase], text


def test_an_honest_use_is_not() -> None:
    for text in (
        "both go on the same GPU",
        "the option goes on the command line",
        "the trials that go on GPU 1",
        "the two cannot be told apart",
        "a token cannot be told from code",
        'owner="nobody"',
        "~nobody/x",
        "NOBODY = 65534",
        "cargo on board",
        "the values of other trials",
        "it belongs in there",
        "wishbone",
    ):
        assert list(found_in(text)) == [], text
