"""Whether a trial's command can run at all, as far as that is certain before one has run.

A command is a text for bash, so almost anything may stand in it. Only the program of a simple command is looked for, by
the same bash, PATH, functions and directory as the trial will have. Whatever is less certain is left to the trial.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping

TIME_LIMIT_SECONDS = 5.0

_SIMPLE_WORD = re.compile(r"[\w./+-]+", re.ASCII)
_HARMLESS = frozenset({"&&", ">", ">>", "<", ">&", "&>", "&>>"})
"""Operators after which the command has failed all the same when its first program is missing."""
_LOOK = 'type -t command_not_found_handle || type -t -- "$1"'


def problem_of(command: str, directory: str, environment: Mapping[str, str]) -> str:
    """Why no trial could run this command on this machine, as a sentence; "" where it may be able to.

    :param directory: in which it will run.
    :param environment: of the trials.
    """
    word = _program_of(command)
    if not word or not _finds_nothing(word, directory, environment):
        return ""
    if "/" in word:
        return f"there is no {word} that can be executed in {directory}; correct trialCommand or trialCodeDirectory"
    path = environment.get("PATH") or os.defpath
    return f"{word} is not found on the PATH of the trials ({path}); correct trialCommand, or install {word}"


def _program_of(command: str) -> str:
    """The word by which a command finds its program, if the command is simple enough to tell; else ""."""
    command = command.strip()
    if "\n" in command:
        return ""
    try:
        words = list(shlex.shlex(command, posix=False, punctuation_chars=True))
    except ValueError:
        return ""
    operators = {word for word in words if set(word) <= set("();<>|&")}
    first = command.split(maxsplit=1)[:1]
    is_simple = operators <= _HARMLESS and first == words[:1] and bool(_SIMPLE_WORD.fullmatch(first[0]))
    return first[0] if is_simple else ""


def _finds_nothing(word: str, directory: str, environment: Mapping[str, str]) -> bool:
    """Whether bash answers, and knows no program, function, builtin or keyword by this word."""
    try:
        answer = subprocess.run(
            ["bash", "-c", _LOOK, "bash", word],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT_SECONDS,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 1 and not answer.stdout
