"""`keeper-<hash>.pyz relay`: connections between keeper and manager where the SSH server forbids forwarding. One SSH
session listens, and every connection has a session of its own (docs/decisions/0010).

Standard input begins with one line of JSON; standard output begins with {"socket": path}, or {"error": sentence} with
exit code 1.

{"socket": path}                 Listen on the path, which `prepare` gave, until standard input ends; the socket is
                                 removed then.
{"socket": path, "carry": true}  Wait for one connection to a relay that listens, and print {"connection": true}. From
                                 then on standard input and output are that connection, each of them until it ends;
                                 with "whole": true both until either ends, for streams that do not pass on the end of
                                 one direction (pods/exec).

Sessions that wait take their connections from the listening socket itself: the listener passes it to each of them over
a second socket beside the first. All of them end when another process has removed the socket, which is how `point` and
`remove` dismiss a relay whose SSH connection has died silently.
"""

import contextlib
import json
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Iterator

from proctor.sdk.files import remove_file
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.commands.main import read_object
from proctor.trial_keeper.errors import CommandRefused, TrialKeeperError

_HANDOVER_SUFFIX = ".next"  # the kernel takes paths of 107 bytes, those of `prepare` have 100
_POLL_INTERVAL_SECONDS = 2.0
_WAITING_CONNECTIONS = 128
_READ_BYTES = 256 * 1024
_STDIN, _STDOUT, _STDERR = 0, 1, 2


def main() -> int:
    """Serve standard input and output until they end; returns the exit code."""
    with contextlib.ExitStack() as stack:
        try:
            with open(_STDIN, "rb", buffering=0, closefd=False) as source:  # a connection may follow: not a byte more
                given = CommandInput("relay", read_object(source), source)
            path, carries, is_whole = given.text("socket"), given.flag("carry"), given.flag("whole")
            if carries:
                listener = stack.enter_context(_receive_listener(path))
            else:
                listener = stack.enter_context(_bind(path))
                handover = stack.enter_context(_bind(path + _HANDOVER_SUFFIX))
            socket_file = _SocketFile(path)
        except (TrialKeeperError, OSError) as error:
            _answer({"error": f"the relay cannot listen: {error}"})
            return 1
        _answer({"socket": path})
        try:
            if carries:
                _carry_one(listener, socket_file, is_whole=is_whole)
            else:
                _hand_out(listener, handover, socket_file)
        except (TrialKeeperError, OSError) as error:
            print(f"the relay has ended: {error}", file=sys.stderr)
            return 1
    return 0


class _SocketFile:
    """The file of the listening socket, which another process removes to dismiss the relay."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = os.stat(path).st_ino
        self._next_look = 0.0

    def is_removed(self) -> bool:
        """Looks at most every `_POLL_INTERVAL_SECONDS`."""
        if (now := time.monotonic()) < self._next_look:
            return False
        self._next_look = now + _POLL_INTERVAL_SECONDS
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True


def _answer(body: dict[str, object]) -> None:
    os.write(_STDOUT, json.dumps(body).encode() + b"\n")


@contextlib.contextmanager
def _bind(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(path)
        except OSError as error:
            raise OSError(f"{path}: {error.strerror or error}") from error
        try:
            os.chmod(path, 0o600)
            listener.listen(_WAITING_CONNECTIONS)
            listener.setblocking(False)
            yield listener
        finally:
            remove_file(path)


def _receive_listener(path: str) -> socket.socket:
    """The listening socket, out of the process that has bound it to `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as handover:
        handover.connect(path + _HANDOVER_SUFFIX)
        _, descriptors, _, _ = socket.recv_fds(handover, 1, 1)
    if not descriptors:
        raise OSError(f"{path}: its relay has ended")
    return socket.socket(fileno=descriptors[0])


def _connections(listener: socket.socket, socket_file: _SocketFile) -> Iterator[socket.socket]:
    """Every connection to a socket that this process accepts, until standard input ends or the relay is dismissed."""
    poll = select.poll()
    poll.register(_STDIN, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while not socket_file.is_removed():
        ready = [descriptor for descriptor, _ in poll.poll(_POLL_INTERVAL_SECONDS * 1000)]
        if _STDIN in ready:
            if os.read(_STDIN, 1):
                raise CommandRefused("more than its request came over standard input")
            return
        if ready:
            try:
                connection = listener.accept()[0]
            except BlockingIOError:  # another session that waits was quicker
                continue
            yield connection


def _hand_out(listener: socket.socket, handover: socket.socket, socket_file: _SocketFile) -> None:
    """Give the listening socket to every process that asks for it."""
    for asking in _connections(handover, socket_file):
        with contextlib.suppress(OSError), asking:  # it may have ended meanwhile
            socket.send_fds(asking, [b"+"], [listener.fileno()])


def _carry_one(listener: socket.socket, socket_file: _SocketFile, *, is_whole: bool) -> None:
    """Carry the next connection over standard input and output until both of its directions have ended, or either."""
    connection = next(_connections(listener, socket_file), None)
    if connection is None:
        return
    listener.close()
    with connection:
        _answer({"connection": True})
        _carry(connection, socket_file, is_whole=is_whole)


class _Direction:
    """One direction of a connection: what has been read from `source` and not yet been written to `target`."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self._data = b""
        self.is_open = True

    @property
    def waits_for(self) -> tuple[int, int]:
        """A descriptor and its event for `poll`."""
        return (self.target, select.POLLOUT) if self._data else (self.source, select.POLLIN)

    def move(self) -> None:
        """Read, or write what was read; `is_open` is false after the end."""
        with contextlib.suppress(BlockingIOError):
            if not self._data:
                self._data = os.read(self.source, _READ_BYTES)
                self.is_open = bool(self._data)
            self._data = self._data[os.write(self.target, self._data) :] if self._data else b""


def _carry(connection: socket.socket, socket_file: _SocketFile, *, is_whole: bool) -> None:
    """Raises OSError when the session or the keeper's process has ended before the connection has."""
    for descriptor in (_STDIN, _STDOUT, connection.fileno()):
        os.set_blocking(descriptor, False)
    inward = _Direction(_STDIN, connection.fileno())
    outward = _Direction(connection.fileno(), _STDOUT)
    is_needed = all if is_whole else any
    while is_needed((inward.is_open, outward.is_open)) and not socket_file.is_removed():
        events = {_STDOUT: 0} if outward.is_open else {}  # 0: the end of a session is reported all the same
        for direction in (inward, outward):
            if direction.is_open:
                descriptor, event = direction.waits_for
                events[descriptor] = events.get(descriptor, 0) | event
        poll = select.poll()
        for descriptor, event in events.items():
            poll.register(descriptor, event)
        ready = dict(poll.poll(_POLL_INTERVAL_SECONDS * 1000))
        if ready.get(_STDOUT, 0) & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError("its session was closed")
        for direction, end in ((inward, connection.shutdown), (outward, _end_output)):
            if direction.is_open and ready.get(direction.waits_for[0]):
                direction.move()
                if not direction.is_open:
                    end(socket.SHUT_WR)


def _end_output(how: int) -> None:
    """SSH servers give two pipes, or one socket for both directions; and sshd reports the end of standard output only
    when standard error has ended too."""
    if stat.S_ISSOCK(os.fstat(_STDOUT).st_mode):
        output = socket.socket(fileno=_STDOUT)
        with contextlib.suppress(OSError):
            output.shutdown(how)
        output.detach()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), _STDOUT)
        os.dup2(nowhere.fileno(), _STDERR)
