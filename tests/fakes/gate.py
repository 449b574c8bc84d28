"""A port that can be closed, in front of a server of the tests."""

import socket
import threading
from contextlib import suppress


class Gate:
    """A port from which connections are forwarded to another one of loopback, while it is open."""

    def __init__(self, target: int, address: str) -> None:
        self._target = target
        self.address = address
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self.port = 0

    def open(self) -> None:
        """Take connections, each time at the same port."""
        self._listener = socket.create_server((self.address, self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections, and end those that there are."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self._connections:
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                ours, _ = listener.accept()
                try:
                    theirs = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # it is starting
                    ours.close()
                    continue
                self._connections += [ours, theirs]
                for source, sink in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
