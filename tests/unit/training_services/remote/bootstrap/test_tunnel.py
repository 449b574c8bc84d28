"""The manager's end of a relay, with a machine that misbehaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from proctor.training_services.remote.bootstrap import tunnel
from proctor.training_services.remote.bootstrap.keeper_commands import NodeKeeper
from proctor.training_services.remote.bootstrap.tunnel import Relay
from proctor.training_services.ssh.base import CompletedCommand
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, SessionRefused

pytestmark = pytest.mark.anyio

LISTENS = b'{"socket": "/run/x.sock"}\n'


class Session:
    """Both streams of a command that has said all it will ever say."""

    def __init__(self, said: bytes = LISTENS, *, ends: bool = False, broken: bool = False, complaint: str = "") -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(said)
        if ends:
            self.stdout.feed_eof()
        self.stderr_tail = complaint.encode()
        self.received = b""
        self._broken = broken

    def write(self, data: bytes, /) -> None:
        self.received += data

    async def drain(self) -> None:
        if self._broken:
            raise BrokenPipeError("the channel is closed")

    async def wait(self) -> int:
        return 0


class Machine:
    """Its SSH server has room for so many sessions; they are given in this order, and then as they should be."""

    def __init__(self, *sessions: Session, room: int = 10) -> None:
        self.peer = "bob@gpu-1"
        self.commands: list[str] = []
        self.sessions: list[Session] = []
        self._next = list(sessions)
        self._room = room
        self._open = 0

    @asynccontextmanager
    async def start_process(self, command: Sequence[str], *, is_lasting: bool = False) -> AsyncIterator[Any]:
        assert is_lasting
        with self._take(command[-1]):
            self.sessions.append(self._next.pop(0) if self._next else Session())
            yield self.sessions[-1]

    async def run(self, command: Sequence[str]) -> CompletedCommand:
        with self._take(command[-1]):
            return CompletedCommand(0, b"", b"")

    @contextmanager
    def _take(self, word: str) -> Iterator[None]:
        if self._open == self._room:
            raise SessionRefused("its SSH server opens no more sessions (open failed); see MaxSessions")
        self.commands.append(word)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def relay_on(machine: Any, manager: str = "/nowhere") -> Relay:
    return Relay(machine, NodeKeeper(machine, "python3", "k.pyz", "/d"), socket="/run/x.sock", manager=manager)


async def test_it_is_open_when_it_listens_and_every_connection_has_a_session() -> None:
    machine = Machine()
    await relay_on(machine).check()
    assert machine.commands == ["relay"] * 4 + ["true"]
    requests = [json.loads(session.received) for session in machine.sessions]
    assert requests == [{"socket": "/run/x.sock", "carry": carry} for carry in (False, True, True, True)]


@pytest.mark.parametrize(
    ("session", "kind", "said"),
    [
        (lambda: Session(b"", ends=True), ConnectionEnded, "ended before it listened$"),
        (lambda: Session(b"", ends=True, complaint="no memory\n"), ConnectionEnded, "it listened: no memory$"),
        (lambda: Session(b""), ConnectionEnded, "has not answered within 0.01 s"),
        (lambda: Session(b"", broken=True), ConnectionEnded, "cannot be reached: the channel is closed"),
        (lambda: Session(b'{"error": "no room"}\n'), CommandFailed, "^no room$"),
        (lambda: Session(b"Welcome!\n"), CommandFailed, "the relay answers b'Welcome!"),
        (lambda: Session(b'["x"]\n'), CommandFailed, "x"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
async def test_what_a_session_says_instead_ends_it_with_that_reason(
    session: Callable[[], Session],
    kind: type[Exception],
    said: str,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel, "_START_SECONDS", 0.01)
    with pytest.raises(kind, match=said):
        await relay_on(Machine(*([] if is_first else [Session()]), session())).run()


async def test_the_end_of_the_session_that_listens_ends_the_relay() -> None:
    assert await relay_on(Machine(Session(ends=True))).run() == "its relay has ended"
    said = await relay_on(Machine(Session(ends=True, complaint="no more of it"))).run()
    assert said == "its relay has ended: no more of it"


@pytest.mark.parametrize("said", [b"", b"Connection closed by administrator\n"])
async def test_a_session_that_ends_while_it_waits_ends_the_relay(said: bytes) -> None:
    with pytest.raises(ConnectionEnded, match="its relay has ended: why"):
        await relay_on(Machine(Session(), Session(LISTENS + said, ends=True, complaint="why"))).run()


@pytest.mark.parametrize("room", [1, 2, 4])
async def test_a_server_without_room_for_its_sessions_and_a_command_is_named(room: int) -> None:
    with pytest.raises(SessionRefused) as caught:
        await relay_on(Machine(room=room)).run()
    assert str(caught.value) == (
        "its SSH server forbids forwarding, and refuses the 5 sessions at once that a relay needs; allow "
        "AllowStreamLocalForwarding or raise MaxSessions in its sshd_config"
    )


async def test_five_sessions_are_enough() -> None:
    await relay_on(Machine(room=5)).check()
