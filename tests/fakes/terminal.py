"""A pseudo-terminal with a command in its foreground: what it shows is read, what a person types is written."""

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

PATIENCE_SECONDS = 90.0


class Terminal:
    """Made by `on_terminal`. Its command's stdin and stderr are the terminal, its stdout is a pipe."""

    def __init__(self, fd: int, process: "subprocess.Popen[str]") -> None:
        self.shown = ""
        self._fd = fd
        self._process = process

    def until_asked(self, text: str, times: int = 1) -> None:
        """Read until the text was shown so many times and the terminal has stopped to echo."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while self.shown.count(text) < times or termios.tcgetattr(self._fd)[3] & termios.ECHO:
            assert time.monotonic() < gives_up, f"waited in vain for {text!r}; shown was {self.shown!r}"
            assert self._read(0.05), f"the command ended before {text!r}; shown was {self.shown!r}"

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._fd, f"{text}\n".encode())

    def until_ended(self) -> tuple[int, str]:
        """The command's exit code and its stdout, which must be short."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while self._read(0.05):
            assert time.monotonic() < gives_up, f"the command does not end; shown was {self.shown!r}"
        output, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode, output

    def _read(self, seconds: float) -> bool:
        """Take what is shown within so long; False once the terminal is closed on the other side."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 4096)
        except OSError:  # EIO: the other side is closed
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A command whose controlling terminal is a new one. On leaving it does not run any more."""
    ours, its = pty.openpty()
    try:
        process = subprocess.Popen(
            ["setsid", "--ctty", *command],  # preexec_fn would be easier, but is not safe beside threads
            env=dict(environment),
            stdin=its,
            stdout=subprocess.PIPE,
            stderr=its,
            text=True,
        )
        os.close(its)
        its = -1
        try:
            yield Terminal(ours, process)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)
