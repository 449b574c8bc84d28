"""Notifications from the kernel that files change (inotify through ctypes; Python has no function for it)."""

import ctypes
import os
import struct
from collections.abc import Iterator

IN_MODIFY = 0x00000002
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_IGNORED = 0x00008000
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """One inotify instance. Wait for `descriptor` to become readable, then `read`."""

    def __init__(self) -> None:
        self.descriptor = _check(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC), "inotify")

    def watch(self, path: str, mask: int) -> int:
        """Watch a path; returns the number its events will carry. Raises OSError (no such file, no watches left)."""
        return _check(_libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask), path)

    def unwatch(self, number: int) -> None:
        """Stop watching; does nothing for a watch that is gone (its file was deleted)."""
        _libc.inotify_rm_watch(self.descriptor, number)

    def read(self) -> Iterator[tuple[int, int, bytes]]:
        """The (number, mask, file name in a watched directory) of all events there are now. The number is -1 when the
        kernel has dropped some."""
        while True:
            try:
                data = os.read(self.descriptor, _BUFFER_BYTES)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                number, mask, _, length = _HEADER.unpack_from(data, position)
                position += _HEADER.size
                yield number, mask, data[position : position + length].rstrip(b"\0")
                position += length
            if len(data) < _BUFFER_BYTES // 2:
                return

    def close(self) -> None:
        """Stop watching everything."""
        os.close(self.descriptor)


def _check(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
