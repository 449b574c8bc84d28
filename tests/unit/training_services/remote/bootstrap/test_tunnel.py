"""The manager's end of a relay, with a machine that misbehaves."""

import asyncio
from collections.abc import Callable

import pytest

from proctor.training_services.remote.bootstrap.tunnel import open_relay, serve_relay
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded

pytestmark = pytest.mark.anyio


class Machine:
    """Both streams of a command that has said all it will ever say."""

    def __init__(self, said: bytes, *, ends: bool = True, broken: bool = False) -> None:
        self._stream = asyncio.StreamReader()
        self._stream.feed_data(said)
        if ends:
            self._stream.feed_eof()
        self._broken = broken
        self.told = b""

    async def read(self, n: int, /) -> bytes:
        return await self._stream.read(n)

    async def readline(self) -> bytes:
        return await self._stream.readline()

    def write(self, data: bytes, /) -> None:
        self.told += data

    async def drain(self) -> None:
        if self._broken:
            raise BrokenPipeError("the channel is closed")


async def test_it_listens_when_it_says_so() -> None:
    machine = Machine(b'{"socket": "/run/x.sock"}\n')
    await open_relay(machine, machine, "/run/x.sock")
    assert machine.told == b'{"socket": "/run/x.sock"}\n'


@pytest.mark.parametrize(
    ("machine", "kind", "said"),
    [
        (lambda: Machine(b""), ConnectionEnded, "ended before it listened"),
        (lambda: Machine(b"", ends=False), ConnectionEnded, "has not answered within 0.01 s"),
        (lambda: Machine(b"", broken=True), ConnectionEnded, "cannot be reached: the channel is closed"),
        (lambda: Machine(b'{"error": "no room"}\n'), CommandFailed, "^no room$"),
        (lambda: Machine(b"Welcome!\n"), CommandFailed, "the relay answers b'Welcome!"),
        (lambda: Machine(b'["x"]\n'), CommandFailed, "x"),
    ],
)
async def test_what_it_says_instead_is_told(machine: Callable[[], Machine], kind: type[Exception], said: str) -> None:
    there = machine()
    with pytest.raises(kind, match=said):
        await open_relay(there, there, "/run/x.sock", timeout_seconds=0.01)


async def test_the_end_of_the_command_ends_the_relay() -> None:
    machine = Machine(b"")
    await serve_relay(machine, machine, "/nowhere")


async def test_noise_on_the_wire_ends_the_relay_with_a_reason() -> None:
    machine = Machine(b"Connection closed by administrator")
    with pytest.raises(ConnectionEnded, match="its relay has ended: what came over the relay is no frame"):
        await serve_relay(machine, machine, "/nowhere")
