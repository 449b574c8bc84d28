"""Getting into a machine: with keys, an agent, a password, through jump hosts; and what is said when it fails."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from fakes.ssh_server import HOST, FakeSshServer, Wanted, pass_on, raw_server, ssh_server, write_key

from proctor.training_services.providers import CheckVerdict
from proctor.training_services.ssh.connection import HostKeys, RouteTrace, open_connection
from proctor.training_services.ssh.errors import HostKeyRefused, KeyUnusable, LoginRefused, Unreachable
from proctor.training_services.ssh.settings import Login, MachineSettings

pytestmark = pytest.mark.anyio

USER = "bob"
SECRET = "correct horse"
NOTHING = Login()


@pytest.fixture(autouse=True)
def home(home: Path) -> Path:
    """The user's home on the manager's machine, without an agent, with a folder for SSH."""
    (home / ".ssh").mkdir(mode=0o700)
    return home


def know(home: Path, *servers: FakeSshServer) -> None:
    (home / ".ssh" / "known_hosts").write_text("".join(f"{server.line}\n" for server in servers))


@asynccontextmanager
async def known_server(home: Path, **wanted: Any) -> AsyncIterator[FakeSshServer]:
    """A server whose host key is known."""
    async with ssh_server(Wanted(**wanted)) as server:
        know(home, server)
        yield server


@pytest.fixture
async def server() -> AsyncIterator[FakeSshServer]:
    """A server that takes the password, and whose host key is not known."""
    async with ssh_server(Wanted(passwords={USER: SECRET})) as running:
        yield running


def configure(home: Path, text: str) -> None:
    (home / ".ssh" / "config").write_text(text)


def machine_at(server: FakeSshServer, **more: Any) -> MachineSettings:
    return MachineSettings(**{"host": HOST, "port": server.port, "user": USER, **more})


async def enter(
    machine: MachineSettings,
    login: Login = NOTHING,
    *,
    trace: RouteTrace | None = None,
    reach_seconds: float = 60.0,
    timeout_seconds: float = 60.0,
) -> str:
    """Log in and look around; where the connection led."""
    keys = HostKeys(Path.home() / "manager" / "known_hosts")
    limits = {"reach_seconds": reach_seconds, "timeout_seconds": timeout_seconds}
    async with open_connection(machine, login, host_keys=keys, trace=trace, **limits) as there:
        assert (await there.run(["echo", "hello"])).stdout == b"hello\n"
        return there.peer


@pytest.mark.parametrize("place", ["keys/mine", ".ssh/id_ed25519"], ids=["named", "by default"])
async def test_a_key_that_is_named_or_lies_at_its_default_place_opens_the_door(home: Path, place: str) -> None:
    key = write_key(home / place)
    named = {"ssh_key_file": str(home / place)} if place == "keys/mine" else {}
    async with known_server(home, keys=[key]) as server:
        assert await enter(machine_at(server, **named)) == f"{USER}@{HOST}:{server.port}"


async def test_identity_files_that_cannot_be_used_are_named_and_the_others_are_tried(home: Path) -> None:
    key = write_key(home / "keys" / "mine")
    write_key(home / "keys" / "locked", passphrase=SECRET)
    (home / "keys" / "letter").write_text("dear bob")
    names = ("nothing", "letter", "locked", "mine")
    configure(home, "".join(f"IdentityFile ~/keys/{name}\n" for name in names))
    async with known_server(home, keys=[key]) as server:
        trace = RouteTrace("m1")
        await enter(machine_at(server), trace=trace)
        assert trace.steps()[-1].found == "as bob with ~/keys/mine"
    async with known_server(home) as server:
        with pytest.raises(LoginRefused) as caught:
            await enter(machine_at(server), Login(passphrase="wrong battery"))
    assert "tried ~/keys/mine; ~/keys/letter is unusable (" in str(caught.value)
    assert "; ~/keys/locked has another passphrase; give a password" in str(caught.value)
    assert "nothing" not in str(caught.value)


async def test_a_key_with_a_passphrase_needs_it(home: Path) -> None:
    key = write_key(home / "mine", passphrase=SECRET)
    async with known_server(home, keys=[key]) as server:
        machine = machine_at(server, ssh_key_file=str(home / "mine"))
        await enter(machine, Login(passphrase=SECRET))
        with pytest.raises(KeyUnusable, match="~/mine is protected by a passphrase; give sshPassphrase"):
            await enter(machine)
        with pytest.raises(KeyUnusable, match="the passphrase given does not open its key ~/mine") as caught:
            await enter(machine, Login(passphrase="wrong battery"))
    assert "wrong battery" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "does not exist on the manager's machine"),
        ("folder", "cannot be read: Is a directory"),
        ("letter", "is not a usable private key"),
    ],
)
async def test_a_key_file_that_cannot_be_used_is_named(home: Path, name: str, problem: str) -> None:
    (home / "folder").mkdir()
    (home / "letter").write_text("dear bob")
    with pytest.raises(KeyUnusable, match=f"its key ~/{name} {problem}"):
        await enter(MachineSettings(host=HOST, port=1, user=USER, ssh_key_file=str(home / name)))


@pytest.mark.parametrize("question", ["Password: ", "Passwort von bob:", "(bob@m1) Mot de passe :"])
async def test_a_password_is_also_given_to_an_interactive_question(home: Path, question: str) -> None:
    wanted: dict[str, Any] = {"questions": [(question, False)], "takes_password": False}
    async with known_server(home, passwords={USER: SECRET}, **wanted) as server:
        await enter(machine_at(server), Login(password=SECRET))
    assert server.tried == ["answers"]


async def test_a_question_that_is_not_about_a_password_is_not_answered_with_it(home: Path) -> None:
    wanted: dict[str, Any] = {"questions": [("Your name: ", True)], "takes_password": False}
    async with known_server(home, passwords={USER: SECRET}, **wanted) as server:
        with pytest.raises(LoginRefused, match="its SSH server did not ask for the password"):
            await enter(machine_at(server), Login(password=SECRET))
    assert "answers" not in server.tried


async def test_a_wrong_password_is_tried_once_and_never_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with known_server(home, passwords={USER: SECRET}) as server:
        with caplog.at_level(logging.DEBUG), pytest.raises(LoginRefused) as caught:
            await enter(machine_at(server), Login(password="wrong battery"))
    assert str(caught.value) == "login as bob was refused; tried the password; correct the password or the user"
    assert server.tried == ["password"]
    assert "wrong battery" not in caplog.text


async def test_a_refused_login_names_what_was_tried(home: Path) -> None:
    write_key(home / ".ssh" / "id_ed25519")
    write_key(home / ".ssh" / "id_rsa", passphrase=SECRET)
    async with known_server(home, keys=[]) as server:
        with pytest.raises(LoginRefused) as caught:
            await enter(machine_at(server))
    assert str(caught.value) == (
        "login as bob was refused; tried ~/.ssh/id_ed25519; ~/.ssh/id_rsa needs a passphrase; "
        "give a password or another sshKeyFile, or correct the user"
    )


async def test_a_login_without_anything_to_try_says_what_is_missing(home: Path) -> None:
    async with known_server(home) as server:
        with pytest.raises(LoginRefused, match=r"SSH_AUTH_SOCK is not set.* no key file can be used"):
            await enter(machine_at(server))


async def test_a_server_that_asks_for_no_key_is_named(home: Path) -> None:
    write_key(home / ".ssh" / "id_ed25519")
    async with known_server(home, passwords={USER: SECRET}, takes_keys=False) as server:
        with pytest.raises(LoginRefused, match=r"refused; its SSH server did not ask for a key; .* give a password$"):
            await enter(machine_at(server))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("IdentityAgent none\n", r"no SSH agent is known to the manager \(IdentityAgent none\)"),
        ("", r"the SSH agent at \$SSH_AUTH_SOCK no longer responds and no key file"),
    ],
)
async def test_an_agent_that_is_switched_off_or_gone_is_the_reason(
    home: Path, monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone.sock"))
    configure(home, line)
    async with known_server(home) as server:
        with pytest.raises(LoginRefused, match=problem):
            await enter(machine_at(server))


async def test_a_server_that_ends_the_login_after_some_keys_still_gets_the_password(home: Path) -> None:
    named = [home / f"key{number}" for number in range(6)]
    for path in named:
        write_key(path)
    configure(home, "".join(f"IdentityFile {path}\n" for path in named))
    async with known_server(home, passwords={USER: SECRET}, most_keys=5) as server:
        await enter(machine_at(server), Login(password=SECRET))
        with pytest.raises(LoginRefused, match="Too many authentication failures"):
            await enter(machine_at(server))


async def test_an_unknown_host_key_is_refused_with_the_line_that_would_add_it(
    home: Path, server: FakeSshServer
) -> None:
    with pytest.raises(HostKeyRefused, match="its host key is not known") as caught:
        await enter(machine_at(server), Login(password=SECRET))
    assert caught.value.line == server.line
    assert str(caught.value).endswith(f": `{server.line}`")
    assert server.tried == []
    (home / ".ssh" / "known_hosts").write_text(caught.value.line + "\n")
    await enter(machine_at(server), Login(password=SECRET))


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ecdsa-sha2-nistp256"])
async def test_a_changed_host_key_is_refused_loudly_even_where_new_ones_are_trusted(
    home: Path, server: FakeSshServer, kind: str
) -> None:
    other = asyncssh.generate_private_key(kind).export_public_key("openssh").decode()
    (home / ".ssh" / "known_hosts").write_text(f"# mine\n[{HOST}]:{server.port} {other}")
    with pytest.raises(HostKeyRefused, match=r"ITS HOST KEY HAS CHANGED.*~/.ssh/known_hosts line 2") as caught:
        await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
    assert server.tried == []
    assert caught.value.line == server.line
    assert server.line in str(caught.value)


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ("[127.0.0.1]:{port} {key}\n@revoked * {key}\n", 2),
        ("@revoked [127.0.0.1]:{port} {key}", 1),
        ("@revoked 127.0.0.1 {key}", 1),
    ],
    ids=["known, too", "its address", "its host"],
)
async def test_a_revoked_host_key_is_refused_even_where_new_ones_are_trusted(
    home: Path, server: FakeSshServer, known: str, line: int
) -> None:
    (home / ".ssh" / "known_hosts").write_text(known.format(port=server.port, key=server.public_key))
    with pytest.raises(HostKeyRefused, match=rf"marked as revoked at ~/.ssh/known_hosts line {line}"):
        await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
    assert server.tried == []
    assert not (home / "manager").exists()


async def test_a_host_key_that_cannot_be_remembered_is_refused(home: Path, server: FakeSshServer) -> None:
    (home / "manager").write_text("a file")
    with pytest.raises(HostKeyRefused, match=r"its host key cannot be kept in .*; make it writable") as caught:
        await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
    assert caught.value.line == server.line


async def test_a_host_key_is_remembered_only_where_the_server_has_proved_to_hold_it(home: Path) -> None:
    shown, held = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
    shown.sign = held.sign
    async with ssh_server(Wanted(passwords={USER: SECRET}), host_key=shown) as server:
        with pytest.raises(Unreachable, match="ended the login"):
            await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
        assert server.tried == []
    assert not (home / "manager").exists()


async def test_a_machine_trusted_on_first_use_is_remembered_and_held_to_its_key(
    home: Path, server: FakeSshServer
) -> None:
    await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
    assert (home / "manager" / "known_hosts").read_text() == f"{server.line}\n"
    assert not (home / ".ssh" / "known_hosts").exists()
    await enter(machine_at(server), Login(password=SECRET))
    async with ssh_server(Wanted(passwords={USER: SECRET})) as impostor:
        store = home / "manager" / "known_hosts"
        store.write_text(store.read_text().replace(f":{server.port}", f":{impostor.port}"))
        with pytest.raises(HostKeyRefused, match="HAS CHANGED"):
            await enter(machine_at(impostor, trust_on_first_use=True), Login(password=SECRET))
        assert impostor.tried == []


async def test_known_hosts_checking_cannot_be_switched_off_in_the_ssh_config(home: Path, server: FakeSshServer) -> None:
    configure(home, "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile none\n")
    with pytest.raises(HostKeyRefused, match="not known"):
        await enter(machine_at(server), Login(password=SECRET))


async def test_a_host_certificate_is_accepted_of_a_known_authority_only(home: Path) -> None:
    authority, other, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
    public = authority.export_public_key("openssh").decode()
    for issuer in (authority, other):
        certificate = issuer.generate_host_certificate(key, "m1", principals=[HOST])
        async with ssh_server(Wanted(passwords={USER: SECRET}), host_key=(key, certificate)) as server:
            (home / ".ssh" / "known_hosts").write_text(f"@cert-authority [{HOST}]:{server.port} {public}")
            if issuer is authority:
                await enter(machine_at(server), Login(password=SECRET))
                continue
            with pytest.raises(HostKeyRefused, match=r"its host key was refused \(.*\); see ~/.ssh/known_hosts"):
                await enter(machine_at(server, trust_on_first_use=True), Login(password=SECRET))
            assert server.tried == []


async def test_names_of_the_ssh_config_are_understood(home: Path) -> None:
    key = write_key(home / "keys" / "cluster")
    async with ssh_server(Wanted(keys=[key])) as server:
        hosts = home / "cluster_hosts"
        hosts.write_text(f"gpu-box {server.public_key}\n")
        configure(
            home,
            f"Host gpu-*\n  HostName {HOST}\n  Port {server.port}\n  User {USER}\n  IdentityFile ~/keys/cluster\n"
            f"  HostKeyAlias gpu-box\n  UserKnownHostsFile {hosts}\n  RemoteCommand false\n  RequestTTY force\n",
        )
        peer = await enter(MachineSettings(host="gpu-3"))
    assert peer == f"{USER}@{HOST}:{server.port}"


async def test_the_way_leads_through_jump_hosts_that_never_see_the_password(home: Path) -> None:
    key = write_key(home / ".ssh" / "id_ed25519")
    async with (
        ssh_server(Wanted(keys=[key])) as first,
        ssh_server(Wanted(keys=[key])) as second,
        ssh_server(Wanted(passwords={USER: SECRET})) as target,
    ):
        know(home, first, second, target)
        configure(
            home,
            f"Host m1\n HostName {HOST}\n Port {target.port}\n ProxyJump outer,carol@{HOST}:{second.port}\n"
            f"Host outer\n HostName {HOST}\n Port {first.port}\n User dave\n",
        )
        trace = RouteTrace("m1")
        peer = await enter(MachineSettings(host="m1", user=USER), Login(password=SECRET), trace=trace)
        assert peer == f"{USER}@{HOST}:{target.port} through {HOST} through outer"
        assert trace.steps()[0].found == f"reached through outer, {HOST}"
        assert first.connections[0].get_extra_info("username") == "dave"
        assert second.connections[0].get_extra_info("username") == "carol"
        assert "password" not in first.tried + second.tried


async def test_a_jump_host_never_sees_the_key_that_the_machine_list_names(home: Path) -> None:
    key = write_key(home / "keys" / "mine")
    async with ssh_server(Wanted(keys=[key])) as jump, ssh_server(Wanted(keys=[key])) as target:
        know(home, jump, target)
        configure(home, f"Host m1\n HostName {HOST}\n Port {target.port}\n ProxyJump bob@{HOST}:{jump.port}\n")
        with pytest.raises(LoginRefused, match=f"at its jump host bob@{HOST}:{jump.port}: login as bob was refused"):
            await enter(MachineSettings(host="m1", user=USER, ssh_key_file=str(home / "keys" / "mine")))
        assert jump.tried == []
        (home / "keys" / "mine").rename(home / ".ssh" / "id_ed25519")
        await enter(MachineSettings(host="m1", user=USER))


async def test_the_host_key_of_a_jump_host_is_checked_too(home: Path) -> None:
    async with ssh_server(Wanted()) as jump, ssh_server(Wanted()) as target:
        know(home, target)
        configure(home, f"Host m1\n HostName {HOST}\n Port {target.port}\n ProxyJump {HOST}:{jump.port}\n")
        with pytest.raises(HostKeyRefused, match=f"at its jump host .*@{HOST}:{jump.port}: its host key is not") as no:
            await enter(MachineSettings(host="m1"))
        assert no.value.line == jump.line
        with pytest.raises(LoginRefused, match="at its jump host"):
            await enter(MachineSettings(host="m1", trust_on_first_use=True))
        assert (home / "manager" / "known_hosts").read_text() == f"{jump.line}\n"


async def test_a_machine_behind_a_jump_host_that_does_not_answer_is_unreachable(home: Path) -> None:
    key = write_key(home / ".ssh" / "id_ed25519")
    async with ssh_server(Wanted(keys=[key])) as jump:
        know(home, jump)
        configure(home, f"Host m1\n HostName {HOST}\n Port 1\n ProxyJump {HOST}:{jump.port}\n")
        with pytest.raises(Unreachable, match=f"{HOST}:1 cannot be reached from its jump host"):
            await enter(MachineSettings(host="m1"))


@pytest.mark.parametrize(
    ("host", "problem", "config"),
    [
        (HOST, r"127.0.0.1:1 does not answer \(connection refused\); check the port", ""),
        ("no-such-machine.invalid", "the name no-such-machine.invalid is not known here", ""),
        ("a" * 70, r"'a{70}' is not a host name; correct host", ""),
        ("m1", "through more than 8 jump hosts", "Host m1\n ProxyJump m2\nHost m2\n ProxyJump m1\n"),
        ("m1", r"~/.ssh/config cannot be used for m1: .*line 2", "Host *\n  Port many\n"),
    ],
)
async def test_what_leads_to_no_server_is_unreachable(home: Path, host: str, problem: str, config: str) -> None:
    configure(home, config)
    port = None if config else 1
    with pytest.raises(Unreachable, match=problem):
        await enter(MachineSettings(host=host, port=port, user=USER))


async def test_a_server_that_says_nothing_is_given_up_though_its_login_may_take_longer_than_the_port() -> None:
    silence = asyncio.Event()

    async def stay_silent(*_: object) -> None:
        await silence.wait()

    async with raw_server(stay_silent) as port:
        with pytest.raises(Unreachable, match=r"accepts connections but the login was not complete within 0.5 s"):
            await enter(MachineSettings(host=HOST, port=port, user=USER), reach_seconds=0.2, timeout_seconds=0.5)
        silence.set()


async def test_a_port_that_swallows_everything_is_given_up_sooner_than_a_slow_login() -> None:
    with socket.socket() as full:  # the kernel drops what does not fit into its queue
        full.bind((HOST, 0))
        full.listen(0)
        port = full.getsockname()[1]
        with ExitStack() as stack:
            for _ in range(3):
                other = stack.enter_context(socket.socket())
                other.setblocking(False)
                other.connect_ex((HOST, port))
            with pytest.raises(Unreachable, match=r"does not answer \(timed out after 0.3 s\)"):
                await enter(MachineSettings(host=HOST, port=port, user=USER), reach_seconds=0.3)


async def test_a_server_that_speaks_something_else_is_unreachable() -> None:
    async def speak_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: int) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n" * 2000)
        await writer.drain()

    async with raw_server(speak_http) as port:
        with pytest.raises(Unreachable, match="ended the login"):
            await enter(MachineSettings(host=HOST, port=port, user=USER))


async def test_a_server_that_hangs_up_before_its_greeting_is_tried_again(home: Path, no_pauses: None) -> None:
    async with ssh_server(Wanted(passwords={USER: SECRET})) as server:
        open_flow = asyncio.Event()
        open_flow.set()

        async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
            if number >= 3:
                await pass_on(reader, writer, server.port, flows=open_flow)

        async with raw_server(busy) as port:
            (home / ".ssh" / "known_hosts").write_text(f"[{HOST}]:{port} {server.public_key}\n")
            await enter(MachineSettings(host=HOST, port=port, user=USER), Login(password=SECRET))


async def test_a_server_that_always_hangs_up_is_unreachable_in_the_end(no_pauses: None) -> None:
    async def hang_up(*_: object) -> None:
        return

    async with raw_server(hang_up) as port:
        with pytest.raises(Unreachable, match="closes the connection at once"):
            await enter(MachineSettings(host=HOST, port=port, user=USER))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.training_services.ssh.route._FIRST_PAUSE_SECONDS", 0.0)


async def test_the_first_steps_of_a_check_say_what_was_found(home: Path) -> None:
    async with known_server(home, passwords={USER: SECRET}) as server:
        trace = RouteTrace("m1")
        await enter(machine_at(server), Login(password=SECRET), trace=trace)
    name, port, key, login = trace.steps()
    assert {step.verdict for step in trace.steps()} == {CheckVerdict.OK}
    assert (name.name, name.found) == ("name", HOST)
    assert port.found.startswith(f"{HOST}:{server.port} answers (SSH-2.0-")
    assert key.found.startswith("ssh-ed25519 SHA256:")
    assert login.found == "as bob with the password"


Failing = Callable[[FakeSshServer], MachineSettings]


@pytest.mark.parametrize(
    ("machine", "verdicts", "advice"),
    [
        (lambda _: MachineSettings(host="nowhere.invalid"), "fail skipped skipped skipped", "correct host"),
        (lambda _: MachineSettings(host=HOST, port=1), "ok fail skipped skipped", "check the port"),
        (lambda server: machine_at(server, host="localhost"), "ok ok fail skipped", "compare it"),
        (lambda server: machine_at(server), "ok ok ok fail", "start the SSH agent"),
        (lambda server: machine_at(server, ssh_key_file="/no/key"), "ok skipped skipped fail", "correct sshKeyFile"),
    ],
)
async def test_a_check_stops_at_the_step_that_fails(home: Path, machine: Failing, verdicts: str, advice: str) -> None:
    async with known_server(home, passwords={USER: SECRET}) as server:
        trace = RouteTrace("m1")
        with pytest.raises((Unreachable, HostKeyRefused, LoginRefused, KeyUnusable)):
            await enter(machine(server), trace=trace)
    assert " ".join(step.verdict for step in trace.steps()) == verdicts
    (failed,) = [step for step in trace.steps() if step.verdict is CheckVerdict.FAIL]
    assert failed.advice.startswith(advice)
