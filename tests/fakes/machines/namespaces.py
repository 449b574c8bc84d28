"""Network namespaces without names: each lives as long as a descriptor of it is open, so none is ever left behind."""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_NEW_NETWORK = 0x40000000
_SET_ADDRESS, _SET_MASK, _GET_FLAGS, _SET_FLAGS = 0x8916, 0x891C, 0x8913, 0x8914
_UP = 1
T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network of its own, without a route to anywhere else."""

    def __init__(self) -> None:
        def make() -> int:
            _call("unshare", _NEW_NETWORK)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        self.descriptor = _in_thread(make)
        self.run(lambda: raise_interface("lo"))

    @property
    def path(self) -> str:
        """What names it for other processes, such as `ip link set … netns PATH`."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def run(self, work: Callable[[], T]) -> T:
        """Do something in it, in a thread of its own; what the thread starts lives in it too."""

        def enter() -> T:
            _call("setns", self.descriptor, _NEW_NETWORK)
            return work()

        return _in_thread(enter)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in it meanwhile: its sockets, the threads and processes it starts."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", self.descriptor, _NEW_NETWORK)
            yield
        finally:
            _call("setns", before, _NEW_NETWORK)
            os.close(before)

    def close(self) -> None:
        """It goes with its last process."""
        os.close(self.descriptor)


def raise_interface(name: str, address: str | None = None) -> None:
    """Switch an interface of the calling thread's network on; its network is a /24."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if address is not None:
            for request, value in ((_SET_ADDRESS, address), (_SET_MASK, "255.255.255.0")):
                inner = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(probe, request, struct.pack("16s16s", name.encode(), inner))
        _set_flag(probe, name, up=True)


def lower_interface(name: str) -> None:
    """Switch an interface of the calling thread's network off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        _set_flag(probe, name, up=False)


def _set_flag(probe: socket.socket, name: str, *, up: bool) -> None:
    reported = fcntl.ioctl(probe, _GET_FLAGS, struct.pack("16sH14x", name.encode(), 0))
    flags = struct.unpack("16sH14x", reported)[1]
    fcntl.ioctl(probe, _SET_FLAGS, struct.pack("16sH14x", name.encode(), flags | _UP if up else flags & ~_UP))


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _in_thread(work: Callable[[], T]) -> T:
    """A thread is thrown away afterwards, and with it whatever namespace it has entered."""
    reported: list[T] = []
    failed: list[BaseException] = []

    def live() -> None:
        try:
            reported.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=live, name="in a namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return reported[0]
