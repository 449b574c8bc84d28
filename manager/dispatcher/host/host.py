"""The dispatcher process: reads lines from its manager, answers pings at once and everything else in order."""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.host.interface import ABANDONED, IN_ORDER, Call, WorkerThread
from proctor.manager.dispatcher.host.session import HostSession, has_own_algorithm

PARENT_CHECK_SECONDS = 5.0
READ_BYTES = 1 << 20
LEAVING_SHARE = 1.5
"""Of the time that an algorithm has to leave: how long the process stays. There may be two of them."""
TABLES_SECONDS = 2.0
"""Between two tables of a trial scheduler's, which people read."""


class TableTimer:
    """Has tables sent soon after something may have changed, and then not again for TABLES_SECONDS.

    No decision depends on that: the tables are for people, and the only thing here that looks at a clock.
    """

    def __init__(self, send: Call, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """:param send: puts the call that sends them where messages are handled."""
        self._send = send
        self._sleep = sleep
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def notice(self) -> None:
        """Something may have changed. Returns at once."""
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tables", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            self._send()
            self._sleep(TABLES_SECONDS)


class Host:
    """Serves one manager over one socket until it sends Terminate, closes its end, or dies."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._parent = os.getppid()
        self._session = HostSession(self._send)

    def serve(self) -> None:
        """Return when the conversation is over and the algorithms have handled it, or take too long."""
        worker = WorkerThread("session")
        timer = TableTimer(lambda: worker.put(self._session.send_tables))
        mode, has_own, has_scheduler = ABANDONED, False, False
        for line in self._lines():
            message = protocol.decode(line)
            if isinstance(message, protocol.Terminate):
                mode = IN_ORDER
                break
            if isinstance(message, protocol.Initialize):
                has_own, has_scheduler = has_own_algorithm(message), message.scheduler is not None
            if isinstance(message, protocol.Ping):
                self._session.handle(message)
            else:
                worker.put(lambda message=message: self._session.handle(message))  # type: ignore[misc]
                if has_scheduler:
                    timer.notice()
        self._session.stop_asking()
        if has_own or (has_scheduler and mode is IN_ORDER):  # else there is nothing to save and nothing to tell
            worker.put(lambda: self._session.close(mode))
            worker.finish(LEAVING_SHARE * mode.seconds)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while data := self._read():
            *lines, rest = (rest + data).split(b"\n") if b"\n" in data else (rest + data,)
            yield from lines

    def _read(self) -> bytes:
        """Return what has come; nothing when the manager has closed its end or is gone."""
        while not select.select([self._channel], [], [], PARENT_CHECK_SECONDS)[0]:
            if os.getppid() != self._parent:
                return b""
        with suppress(ConnectionError):
            return self._channel.recv(READ_BYTES)
        return b""

    def _send(self, message: protocol.FromDispatcher) -> None:
        line = protocol.encode(message)
        if len(line) > protocol.MAX_LINE_BYTES:
            what = f"a {type(message).__name__} of {len(line)} bytes, at most {protocol.MAX_LINE_BYTES} may travel"
            raise ValueError(f"{what}: propose small parameters and write large things to files")
        with suppress(ConnectionError):  # the manager is gone: the reading end notices and ends the process
            self._channel.sendall(line)


def main(descriptor: int) -> None:
    """Serve on an inherited socket, then leave without waiting for threads of the user's code."""
    with socket.socket(fileno=descriptor) as channel:
        channel.set_inheritable(False)
        Host(channel).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
