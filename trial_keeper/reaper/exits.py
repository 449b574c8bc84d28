"""How a job's end is reported: from a wait status to an end reason and a sentence. Pure.

Used by the reaper, so it imports as little as possible; the reasons are names of `protocol.EndReason`.
"""

import os
import signal

from proctor.sdk.files import last_lines
from proctor.sdk.protocol import NNI_2_BARRIER
from proctor.trial_keeper.linux.files import open_regular_file

_OWN_SIGNALS = {
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
}
_SHELL_SIGNAL_BASE = 128
_LAST_BYTES = 4096
_LOST_BUNDLE = (
    "ModuleNotFoundError: No module named 'proctor",
    "ModuleNotFoundError: No module named 'nni",
    f"/{NNI_2_BARRIER}/",  # NNI 2's own package was imported
)
_LOST_BUNDLE_ADVICE = (
    ". PYTHONPATH no longer has the folder that Proctor puts there; a script that sets it must keep what is there, for "
    "example PYTHONPATH=src:$PYTHONPATH"
)
_SENTENCES = {126: "the command cannot be executed", 127: "command not found"}


class Ending:
    """The reason's name, exit code, signal number and the sentence for people."""

    __slots__ = ("code", "detail", "reason", "signal")

    def __init__(self, reason: str, code: int | None, signal_number: int | None, detail: str) -> None:
        self.reason = reason
        self.code = code
        self.signal = signal_number
        self.detail = detail


def classify(
    wait_status: int, *, stop_reason: str | None, stop_detail: str, out_of_memory: bool, last_line: str
) -> Ending:
    """How the trial ended.

    :param wait_status: as from `os.waitpid`.
    :param stop_reason: the end reason of our stop request, None if there was none.
    :param out_of_memory: the kernel has killed a process for memory while the job ran.
    :param last_line: the last line of its stderr, for the sentence.
    """
    code = os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else None
    number = os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else None
    if stop_reason is not None:
        return Ending(stop_reason, code, number, stop_detail)
    if code == 0:
        return Ending("EXITED_OK", 0, None, "")
    through_shell = number is None
    if number is None and code is not None and code - _SHELL_SIGNAL_BASE in set(signal.Signals):
        number = code - _SHELL_SIGNAL_BASE
    tail = f": {last_line}" if last_line else ""
    if any(trace in last_line for trace in _LOST_BUNDLE):
        tail += _LOST_BUNDLE_ADVICE
    if number is None:
        sentence = _SENTENCES.get(code or 0)
        return Ending("EXITED_ERROR", code, None, f"exit code {code}" + (f": {sentence}" if sentence else "") + tail)
    killed = f"{'its command was ' if through_shell else ''}killed by signal {number} ({_signal_name(number)})"
    if number == signal.SIGKILL and out_of_memory:
        return Ending("OUT_OF_MEMORY", code, number, f"{killed} because memory ran out")
    if number in _OWN_SIGNALS:
        return Ending("EXITED_ERROR", code, number, killed + tail)
    return Ending("SIGNALED", code, number, f"{killed} from outside")


def last_line_of(path: str, *, limit: int = 300) -> str:
    """The last line with something in it of a file's last 4 KiB, cut to `limit` characters; empty when unreadable."""
    try:
        descriptor = open_regular_file(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        found = last_lines(descriptor, 1, most_bytes=_LAST_BYTES)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return found[0][:limit] if found else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
