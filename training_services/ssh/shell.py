"""Command lines that mean the same to every login shell: bash, dash, zsh, tcsh, fish.

The login shell of an account reads every command before anything runs. It may be any, and its start-up files may print.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from proctor.training_services.ssh.base import CompletedCommand
from proctor.training_services.ssh.errors import CommandFailed

_PLAIN = re.compile(r"[A-Za-z0-9_/.,:@%+-]+")
_APART = re.compile(r"(['\\!\n])")

READ_SOURCE = 'import sys;i=sys.stdin.buffer;exec(compile(i.read(int(i.readline())),"source","exec"))'
"""A Python program that reads another one from its standard input, see `with_source`."""

ISOLATED = ("-I", "-S", "-X", "utf8")
"""For a Python on a machine: nothing of its own environment gets in."""


def quoted(argv: Sequence[str]) -> str:
    """One command line of these words. Raises ValueError for a line break or a null, which no shell agrees on."""
    return " ".join(_quoted(word) for word in argv)


def marked(argv: Sequence[str]) -> tuple[str, bytes]:
    """A command line that prints a line of its own before it runs the words, and that line: everything up to it is
    printed by the login shell's start-up files."""
    mark = f"proctor-{secrets.token_hex(8)}"
    return f"echo {mark}; exec {quoted(argv)}", f"{mark}\n".encode()


def strip_startup_output(mark: bytes, finished: CompletedCommand) -> CompletedCommand:
    """What a command of `marked` has printed itself. Raises CommandFailed where there is no mark: its login shell ran
    no command."""
    _, found, rest = finished.stdout.partition(mark)
    if not found:
        raise CommandFailed(
            f"its login shell ran no command; output: {finished.last_line}; give the account a shell that runs "
            "commands",
            finished.code,
        )
    return replace(finished, stdout=rest)


def with_source(source: str) -> bytes:
    """What the program READ_SOURCE must get before the source's own standard input."""
    body = source.encode()
    return b"%d\n%b" % (len(body), body)


def _quoted(word: str) -> str:
    if "\n" in word or "\0" in word:
        raise ValueError(f"a word of a command may hold no line break and no null: {word!r}")
    if _PLAIN.fullmatch(word):
        return word
    # ' \ and ! stand outside of the quotes: shells differ in what they mean inside of them
    return "".join(f"\\{part}" if part in "'\\!" else f"'{part}'" for part in _APART.split(word) if part) or "''"
