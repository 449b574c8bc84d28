"""The first contact with a machine: one session, one Python, one question after another; and how that fails."""

import asyncio
import os
import stat
import sys
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fakes.connections import PASSWORDS, PATIENCE_SECONDS
from fakes.ssh_server import FakeSshServer, Wanted

from proctor.training_services.keepers.archive import build
from proctor.training_services.remote.bootstrap.node import NodeContact, detach, open_contact, require_usable
from proctor.training_services.ssh.connection import Connection
from proctor.training_services.ssh.errors import CommandFailed, ConnectionEnded, NoPython

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("home")]

PYTHON_PATH = str(Path(sys.executable).parent)


@pytest.fixture
def wanted() -> Wanted:
    """One session is enough."""
    return Wanted(passwords=PASSWORDS, most_sessions=1)


@asynccontextmanager
async def opened(there: Connection, python_path: str | None = PYTHON_PATH) -> AsyncIterator[NodeContact]:
    async with open_contact(there, "m-n", python_path=python_path, now=time.time) as contact:
        yield contact


def odd_file(folder: Path, body: str) -> str:
    """A keeper's file whose commands do something odd."""
    path = folder / "odd.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("__init__.py", "trial_keeper/__init__.py", "trial_keeper/commands/__init__.py"):
            archive.writestr(f"proctor/{name}", "")
        archive.writestr("proctor/trial_keeper/commands/main.py", f"def answer_to(name, body, source):\n    {body}\n")
    return str(path)


@pytest.mark.slow
async def test_one_session_is_enough_for_everything(there: Connection, home: Path) -> None:
    archive = await asyncio.to_thread(build, home / "archive")
    async with opened(there) as contact:
        assert not contact.facts.exists
        keeper = await contact.install_keeper(archive)
        prepared = await keeper.prepare()
        assert not Path(prepared.socket).exists()
    directory = home / ".proctor" / "nodes" / "m-n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent, directory / "run")} == {0o700}
    assert (await detach(keeper).prepare()).socket != prepared.socket, "it does not need the contact"
    async with opened(there) as contact:
        assert contact.facts.archives == (archive.name,)
        archive.path.unlink()
        assert await (await contact.install_keeper(archive)).remove() == "", "what is there is not copied again"
    assert not directory.exists()


async def test_where_python_path_has_no_python_another_one_looks_and_says_so(there: Connection, home: Path) -> None:
    async with opened(there, str(home / "nowhere")) as contact:
        assert os.path.basename(contact.facts.python).startswith("python")
        assert contact.facts.python_path_without == str(home / "nowhere")
        with pytest.raises(NoPython, match=f"pythonPath {home}/nowhere has no Python that can be executed"):
            require_usable(contact.facts)
    async with opened(there) as contact:
        assert contact.facts.python_path_without == ""


@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", PATIENCE_SECONDS, "the keeper's command 'start' was ended by a signal"),
        (
            "import os; os.write(2, b'segments lost'); os._exit(3)",
            PATIENCE_SECONDS,
            "'start' failed there with exit code 3: segments lost",
        ),
        ("source.read()", 0.5, r"'start' did not end within 0\.5 s"),
    ],
    ids=["is killed", "prints something else", "does not end"],
)
async def test_why_a_command_gives_no_answer_is_said(
    there: Connection, home: Path, body: str, seconds: float, said: str
) -> None:
    file = odd_file(home, body)
    with pytest.raises(CommandFailed, match=said):
        async with opened(there) as contact:
            await contact.python.run_command(file, "start", {}, timeout_seconds=seconds)


async def test_a_connection_that_ends_meanwhile_has_ended(there: Connection, server: FakeSshServer, home: Path) -> None:
    file = odd_file(home, f"open({str(home / 'begun')!r}, 'w').close(); source.read()")

    async def cut() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (home / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        server.hang_up()

    async with asyncio.TaskGroup() as group:
        group.create_task(cut())
        with pytest.raises(ConnectionEnded):
            async with opened(there) as contact:
                await contact.python.run_command(file, "start", {}, timeout_seconds=PATIENCE_SECONDS)
