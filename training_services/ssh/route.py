"""The route to a machine: through the jump hosts that ~/.ssh/config names, with a login at each. `RouteTrace` records
how far it got, for the first steps of `proctor doctor`.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.ssh.config import Hop, Jump
from proctor.training_services.ssh.errors import HostKeyRefused, KeyUnusable, RemoteError, Unreachable
from proctor.training_services.ssh.host_keys import HostKeys, KnownKey, fingerprint, line_for
from proctor.training_services.ssh.keys import (
    KeyLocked,
    Offer,
    agent_order,
    explicit_key,
    found_keys,
    identity_files,
)
from proctor.training_services.ssh.login import (
    HungUp,
    LoginAttempt,
    LoginClient,
    at_jump,
    gate,
    pauses,
    timed_out,
    unknown_name,
)
from proctor.training_services.ssh.settings import Login, MachineSettings

NAME, PORT, HOST_KEY, LOGIN = STAGES = ("name", "port", "host key", "login")
_MOST_HOPS = 8
_AGENT_SECONDS = 10.0
_NO_FILE = "no key file can be used"


class RouteTrace:
    """Filled by `open_connection`, whether it succeeds or fails."""

    def __init__(self, machine: str) -> None:
        """:param machine: as the user named it."""
        self._machine = machine
        self._found: dict[str, str] = {}
        self._error: RemoteError | None = None

    def passed(self, stage: str, found: str) -> None:
        """One step is behind us."""
        self._found[stage] = found

    def failed(self, error: RemoteError) -> None:
        """The first step that was not passed failed with this."""
        self._error = error

    def steps(self) -> tuple[CheckStep, ...]:
        """The four steps, those after a failure SKIPPED."""
        return tuple(self._step(stage, self._failed_stage()) for stage in STAGES)

    def _failed_stage(self) -> str:
        if self._error is None:
            return ""
        if isinstance(self._error, KeyUnusable):
            return LOGIN  # found out before anything was asked of the network
        return next((stage for stage in STAGES if stage not in self._found), LOGIN)

    def _step(self, stage: str, failed: str) -> CheckStep:
        if stage == failed and self._error is not None:
            return self._failure(stage, self._error)
        if stage in self._found:
            return CheckStep(self._machine, stage, CheckVerdict.OK, self._found[stage])
        return CheckStep(self._machine, stage, CheckVerdict.SKIPPED, "not reached")

    def _failure(self, stage: str, error: RemoteError) -> CheckStep:
        found, _, advice = str(error).rpartition("; ")
        return CheckStep(self._machine, stage, CheckVerdict.FAIL, found or advice, advice if found else "")


class Library(Protocol):
    """What is needed of the SSH library."""

    @property
    def client(self) -> type[LoginClient]:
        """LoginClient, as the library wants it to be."""

    def resolve(self, jump: Jump) -> Hop:
        """What ~/.ssh/config says about a host. Reads files. Raises Unreachable."""

    def load(self, path: Path, passphrase: str | None) -> Sequence[Any]:
        """A private key, see keys.Loader."""

    def public_half(self, path: Path) -> bytes | None:
        """The public half of a private key, where it can be read without a passphrase."""

    def agent_keys(self, path: str) -> AbstractAsyncContextManager[list[tuple[Any, bytes]]]:
        """The keys an SSH agent holds, usable inside. Raises OSError where none answers."""

    async def dial(self, hop: Hop, client: LoginClient, *, tunnel: Any | None, keep_alive_seconds: float) -> Any:
        """Connect and log in. Raises HungUp, Unreachable, HostKeyRefused, LoginRefused."""

    async def close(self, ssh: Any) -> None:
        """End a connection, with a limit."""


@dataclass(frozen=True)
class Limits:
    """How patient a connection is."""

    keep_alive_seconds: float
    reach_seconds: float  # until a port answers
    timeout_seconds: float  # until a server has let us in


class Route:
    """The way to one machine, walked once. What it opens is closed with the stack, the machine's own connection
    first."""

    def __init__(
        self,
        library: Library,
        stack: AsyncExitStack,
        *,
        machine: MachineSettings,
        login: Login,
        host_keys: HostKeys,
        limits: Limits,
    ) -> None:
        self.peer = machine.address
        """Where it leads, for people."""
        self._library = library
        self._stack = stack
        self._machine = machine
        self._login = login
        self._host_keys = host_keys
        self._limits = limits
        self._jumps = 0

    async def follow(self, trace: RouteTrace) -> tuple[Any, LoginClient]:
        """Log in to the machine; its connection, and the client that knows when it ends. Raises RemoteError."""
        try:
            target = await self._resolve(Jump(self._machine.host, self._machine.user, self._machine.port))
            self.peer = target.address + "".join(f" through {jump.host}" for jump in reversed(target.jumps))
            tunnel = await self._pass_jumps(target)
            if tunnel is not None:
                trace.passed(NAME, f"reached through {', '.join(jump.host for jump in target.jumps)}")
            return await self._enter(target, tunnel, trace, own=True)
        except RemoteError as error:
            trace.failed(error)
            raise

    async def _pass_jumps(self, hop: Hop) -> Any | None:
        """The connection to the last jump host before a hop; None: there is none."""
        tunnel = None
        for number, jump in enumerate(hop.jumps):
            self._jumps += 1
            if self._jumps > _MOST_HOPS:
                raise Unreachable(f"the way to it leads through more than {_MOST_HOPS} jump hosts; correct ProxyJump")
            passed = await self._resolve(jump)
            if number == 0:
                tunnel = await self._pass_jumps(passed)
            try:
                tunnel, _ = await self._enter(passed, tunnel, RouteTrace(jump.host), own=False)
            except RemoteError as error:
                raise at_jump(passed, error) from error
        return tunnel

    async def _enter(self, hop: Hop, tunnel: Any | None, trace: RouteTrace, *, own: bool) -> tuple[Any, LoginClient]:
        if tunnel is None and hop.by_address:
            trace.passed(NAME, await _resolve_name(hop))
        known = await asyncio.to_thread(self._host_keys.known, hop)
        for pause in (*pauses(), None):
            async with AsyncExitStack() as agent:
                attempt = await (self._own_attempt(hop, agent) if own else self._any_key(hop, agent, None))
                client = self._client(attempt, known)
                try:
                    return await self._dial(hop, client, tunnel, trace), client
                except HungUp:
                    if pause is None:
                        raise
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _dial(self, hop: Hop, client: LoginClient, tunnel: Any | None, trace: RouteTrace) -> Any:
        async with gate(hop):
            began = asyncio.get_running_loop().time()
            reach = min(self._limits.reach_seconds, self._limits.timeout_seconds)
            try:
                async with asyncio.timeout_at(began + reach) as limit:
                    client.on_connected = lambda: _extend(limit, began + self._limits.timeout_seconds)
                    keep_alive = self._limits.keep_alive_seconds
                    ssh = await self._library.dial(hop, client, tunnel=tunnel, keep_alive_seconds=keep_alive)
                    self._stack.push_async_callback(self._library.close, ssh)
            except TimeoutError as error:
                seconds = self._limits.timeout_seconds if client.connected else reach
                raise timed_out(hop, seconds, connected=client.connected) from error
            finally:
                client.on_connected = lambda: None
                _tell(trace, hop, client)
                await self._remember(hop, client.trusted)
        trace.passed(LOGIN, client.attempt.success)
        return ssh

    async def _remember(self, hop: Hop, key: str | None) -> None:
        if key is None:
            return
        try:
            await asyncio.to_thread(self._host_keys.remember, line_for(hop, key))
        except OSError as error:
            raise HostKeyRefused(
                f"its host key cannot be kept in {self._host_keys.store} ({error.strerror}); make it writable",
                line_for(hop, key),
            ) from error

    async def _own_attempt(self, hop: Hop, stack: AsyncExitStack) -> LoginAttempt:
        """With what the user gave for this machine; jump hosts never see its password."""
        password = self._login.password
        if self._machine.ssh_key_file is None:
            return await self._any_key(hop, stack, password)
        path = Path(self._machine.ssh_key_file).expanduser()
        try:
            keys = await asyncio.to_thread(explicit_key, path, self._login.passphrase, self._library.load)
        except KeyLocked:
            keys = await self._from_agent(hop, stack, path)
            if not keys:
                raise
        return LoginAttempt(hop, keys, password=password)

    async def _any_key(self, hop: Hop, stack: AsyncExitStack, password: str | None) -> LoginAttempt:
        agent, problem = await self._agent(hop, stack)
        named = await asyncio.to_thread(self._public_halves, hop)
        ordered = agent_order(agent, named, hop.identities_only)
        found, notes = await asyncio.to_thread(found_keys, hop, self._login.passphrase, self._library.load)
        offers = [*(Offer(key, "the SSH agent", from_agent=True) for key in ordered), *found]
        no_agent = [] if hop.agent else [f"no SSH agent is known to the manager ({hop.agent_source})"]
        return LoginAttempt(hop, offers, password=password, notes=[*problem, *notes], absent=[*no_agent, _NO_FILE])

    async def _from_agent(self, hop: Hop, stack: AsyncExitStack, path: Path) -> tuple[Offer, ...]:
        agent, _ = await self._agent(hop, stack)
        public = await asyncio.to_thread(self._library.public_half, path)
        return tuple(Offer(key, "the SSH agent", from_agent=True) for key, half in agent if half == public)

    async def _agent(self, hop: Hop, stack: AsyncExitStack) -> tuple[list[tuple[Any, bytes]], list[str]]:
        if not hop.agent:
            return [], []
        try:
            async with asyncio.timeout(_AGENT_SECONDS):
                return await stack.enter_async_context(self._library.agent_keys(hop.agent)), []
        except OSError:  # a TimeoutError is one
            return [], [f"no SSH agent answers any more at {hop.agent_source}"]

    def _public_halves(self, hop: Hop) -> list[bytes]:
        halves = [self._library.public_half(path) for path in identity_files(hop)]
        return [half for half in halves if half is not None]

    def _client(self, attempt: LoginAttempt, known: Sequence[KnownKey]) -> LoginClient:
        trust, keep_alive = self._machine.trust_on_first_use, self._limits.keep_alive_seconds
        return self._library.client(attempt, known, trust=trust, keep_alive_seconds=keep_alive)

    async def _resolve(self, jump: Jump) -> Hop:
        return await asyncio.to_thread(self._library.resolve, jump)


def _extend(limit: asyncio.Timeout, until: float) -> None:
    if not limit.expired():  # it may just have been
        limit.reschedule(until)


def _tell(trace: RouteTrace, hop: Hop, client: LoginClient) -> None:
    if client.connected:
        trace.passed(PORT, f"{hop.place} answers" + (f" ({client.greeting})" if client.greeting else ""))
    if client.attempt.reached and client.host_key:
        first = ", remembered" if client.trusted else ""
        trace.passed(HOST_KEY, f"{client.host_key.split()[0]} {fingerprint(client.host_key)}{first}")


async def _resolve_name(hop: Hop) -> str:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise unknown_name(hop, error) from error
    except UnicodeError as error:
        raise Unreachable(f"{hop.host!r} is no host name; correct host") from error
    return ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))
