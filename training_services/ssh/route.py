"""The route to a machine: through the jump hosts that ~/.ssh/config names, with a login at each. `RouteTrace` records
how far it got, for the first steps of `proctor doctor`.
"""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.ssh.errors import HostKeyRefused, KeyUnusable, RemoteError, Unreachable
from proctor.training_services.ssh.host_keys import HostKeys
from proctor.training_services.ssh.login import Hop, HungUp, Keys, Limits, LoginClient
from proctor.training_services.ssh.settings import Login, MachineSettings
from proctor.trial_keeper.linux.backoff import BackOff

NAME, PORT, HOST_KEY, LOGIN = STAGES = ("name", "port", "host key", "login")
_MOST_HOPS = 8
_MOST_AT_ONCE = 8  # sshd drops logins at random from the tenth on (MaxStartups 10:30:100)
_MOST_TRIES = 6  # of a login at which the server hangs up
_FIRST_PAUSE_SECONDS = 0.3
_LONGEST_PAUSE_SECONDS = 4.8
_CLOSING_SECONDS = 5.0
_gates: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore] = WeakValueDictionary()


class RouteTrace:
    """Filled by `open_connection`, whether it succeeds or fails."""

    def __init__(self, machine: str) -> None:
        """:param machine: as the user named it."""
        self._machine = machine
        self._found: dict[str, str] = {}
        self._error: RemoteError | None = None

    def passed(self, stage: str, found: str) -> None:
        """One step succeeded."""
        self._found[stage] = found

    def failed(self, error: RemoteError) -> None:
        """The first step that did not succeed failed with this."""
        self._error = error

    def steps(self) -> tuple[CheckStep, ...]:
        """The four steps, those after a failure SKIPPED."""
        failed = next((stage for stage in STAGES if stage not in self._found), LOGIN)
        if isinstance(self._error, KeyUnusable):
            failed = LOGIN  # found out before anything was asked of the network
        steps = []
        for stage in STAGES:
            if stage == failed and self._error is not None:
                found, _, advice = str(self._error).rpartition("; ")
                found, advice = (found, advice) if found else (advice, "")
                steps.append(CheckStep(self._machine, stage, CheckVerdict.FAIL, found, advice))
            elif stage in self._found:
                steps.append(CheckStep(self._machine, stage, CheckVerdict.OK, self._found[stage]))
            else:
                steps.append(CheckStep(self._machine, stage, CheckVerdict.SKIPPED, "not reached"))
        return tuple(steps)


class Route:
    """The way to one machine, followed once. What it opens is closed with the stack, the machine's own connection
    first."""

    def __init__(
        self, stack: AsyncExitStack, machine: MachineSettings, login: Login, *, host_keys: HostKeys, limits: Limits
    ) -> None:
        self.peer = machine.address
        """Where it leads, for people."""
        self._stack = stack
        self._machine = machine
        self._login = login
        self._host_keys = host_keys
        self._limits = limits
        self._jumps = 0

    async def follow(self, trace: RouteTrace) -> tuple[Any, LoginClient]:
        """Log in to the machine; its connection, and the client that knows when it ends. Raises RemoteError."""
        try:
            hop = await Hop.read(self._machine)
            self.peer = hop.address + "".join(f" through {jump.host}" for jump in reversed(hop.jumps))
            tunnel = await self._pass_jumps(hop)
            if tunnel is not None:
                trace.passed(NAME, f"reached through {', '.join(jump.host for jump in hop.jumps)}")
            return await self._enter(hop, self._login, tunnel, trace, key_file=self._machine.ssh_key_file)
        except RemoteError as error:
            trace.failed(error)
            raise

    async def _pass_jumps(self, hop: Hop) -> Any | None:
        """The connection to the last jump host before a hop; None: there is none. A jump host gets neither the
        machine's key nor its password."""
        tunnel = None
        for jump in hop.jumps:
            self._jumps += 1
            if self._jumps > _MOST_HOPS:
                raise Unreachable(f"the way to it leads through more than {_MOST_HOPS} jump hosts; correct ProxyJump")
            passed = await Hop.read(jump)
            if tunnel is None:
                tunnel = await self._pass_jumps(passed)
            login = Login(passphrase=self._login.passphrase)  # of the default keys; it stays in this process
            try:
                tunnel, _ = await self._enter(passed, login, tunnel, RouteTrace(jump.host))
            except RemoteError as error:
                error.args = (f"at its jump host {passed.address}: {error}",)
                raise
        return tunnel

    async def _enter(
        self, hop: Hop, login: Login, tunnel: Any | None, trace: RouteTrace, *, key_file: str | None = None
    ) -> tuple[Any, LoginClient]:
        if tunnel is None and hop.by_address:
            trace.passed(NAME, await _resolve(hop))
        known = await asyncio.to_thread(self._host_keys.of, hop.known_names, hop.known_hosts)
        async with AsyncExitStack() as agent:
            keys = Keys(hop, agent)
            if key_file is None:
                await keys.add_all(login.passphrase)
            else:
                await keys.add_named(Path(key_file).expanduser(), login.passphrase)
            pauses = BackOff(first_seconds=_FIRST_PAUSE_SECONDS, longest_seconds=_LONGEST_PAUSE_SECONDS)
            for is_last in (*(False,) * (_MOST_TRIES - 1), True):
                client = LoginClient(hop, keys, login.password, known, trust=self._machine.trust_on_first_use)
                try:
                    async with _gate(hop):
                        return await self._log_in(client, tunnel, trace), client
                except HungUp:
                    if is_last:
                        raise
                await asyncio.sleep(pauses.take())
        raise AssertionError("the last try returns or raises")

    async def _log_in(self, client: LoginClient, tunnel: Any | None, trace: RouteTrace) -> Any:
        try:
            ssh = await client.open(tunnel, self._limits)
            self._stack.push_async_callback(_close, ssh)
        finally:
            if client.port:
                trace.passed(PORT, client.port)
            if client.host_key:
                trace.passed(HOST_KEY, client.host_key)
            if client.new_line:
                await self._remember(client.new_line)
        trace.passed(LOGIN, client.success)
        return ssh

    async def _remember(self, line: str) -> None:
        try:
            await asyncio.to_thread(self._host_keys.remember, line)
        except OSError as error:
            said = f"its host key cannot be kept in {self._host_keys.store} ({error.strerror}); make it writable"
            raise HostKeyRefused(said, line) from error


def _gate(hop: Hop) -> asyncio.Semaphore:
    """Limits the concurrent logins to one server, of all callers: a jump host or a machine that is many
    nodes sees them all. A server that does not answer delays no login to another one."""
    return _gates.setdefault((asyncio.get_running_loop(), hop.place), asyncio.Semaphore(_MOST_AT_ONCE))


async def _resolve(hop: Hop) -> str:
    """The addresses of a hop's name, for people."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        said = f"is not known here ({error.strerror or 'no address'}); correct host, or HostName in ~/.ssh/config"
        raise Unreachable(f"the name {hop.host} {said}") from error
    except UnicodeError as error:
        raise Unreachable(f"{hop.host!r} is not a host name; correct host") from error
    return ", ".join(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _close(ssh: Any) -> None:
    """End a connection, with a limit."""
    ssh.close()
    try:
        async with asyncio.timeout(_CLOSING_SECONDS):
            await ssh.wait_closed()
    except BaseException as error:
        ssh.abort()
        if not isinstance(error, TimeoutError):
            raise
