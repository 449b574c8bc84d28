"""A manager as a process: started, found, refused a second time, stopped, killed."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from proctor.manager.events import KEPT_EVENTS
from proctor.manager.process import daemon
from proctor.manager.process.daemon import ManagerNotStarted, ensure_manager, manager_status, stop_manager
from proctor.manager.process.instance import EXIT_CONFLICT, EXIT_FAILED, EXIT_USAGE
from proctor.manager.settings import Home
from proctor.manager.store.connections import open_writer
from proctor.manager.store.tables import events
from proctor.trial_keeper.start import find_keeper, stop_keeper

COMMAND = [sys.executable, "-m", "proctor.manager"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    yield made
    stop_manager(made)
    stop_keeper(made.node_directory("local"))


def start(home: Home, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A manager that is expected to refuse."""
    command = [*COMMAND, "--home", str(home.path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_manager_is_started_once_found_and_stopped_without_traces_and_without_its_token_in_the_log(
    home: Home,
) -> None:
    first = ensure_manager(home)
    assert ensure_manager(home) == first
    refused = start(home)
    assert refused.returncode == EXIT_CONFLICT
    assert f"pid {first.address.pid} at {first.url}" in refused.stderr
    assert "Traceback" not in refused.stderr
    version = httpx.get(f"{first.url}/api/v1/version", headers={"Authorization": f"Bearer {first.token}"}).json()
    assert (version["pid"], version["home"]) == (first.address.pid, str(home.path))
    for path in ("/", "/api/v1/experiments"):
        httpx.get(f"{first.url}{path}?token={first.token}")
    assert stop_manager(home)
    assert not stop_manager(home)
    assert manager_status(home) is None
    assert not home.manager_file.exists()
    assert {path.name for path in home.run_directory.iterdir()} == {"socket", "port"}
    assert find_keeper(home.node_directory("local")) is None
    logged = "".join(file.read_text() for file in home.log_directory.iterdir())
    assert logged
    assert first.token not in logged


HELD_MANAGER = f"""#!{sys.executable}
import sys
from proctor.manager import __main__, app

open_control = app.open_control

async def open_when_let_go(home, *arguments, **options):
    (home.path / "gate").read_bytes()
    return await open_control(home, *arguments, **options)

app.open_control = open_when_let_go
sys.exit(__main__.main(sys.argv[sys.argv.index("proctor.manager") + 1 :]))
"""
"""A manager that is held, before it opens its database, until something is written into the pipe `gate`."""


def test_a_manager_that_is_held_beyond_any_limit_says_what_it_does_until_it_serves(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare()
    os.mkfifo(home.path / "gate")
    program = tmp_path / "held-manager"
    program.write_text(HELD_MANAGER)
    program.chmod(0o700)
    said: list[str] = []
    clock = FastClock(lambda: said and "control database" in said[-1] and (home.path / "gate").write_bytes(b"go"))
    monkeypatch.setattr(daemon.sys, "executable", str(program))
    monkeypatch.setattr(daemon, "time", clock)
    running = ensure_manager(home, report=said.append)
    assert httpx.get(f"{running.url}/api/v1/health").json() == {"status": "ok", "reason": ""}
    assert f"(pid {running.address.pid}, " in said[0]
    assert any("opening and checking the control database" in text for text in said)


class FastClock:
    """Time for those who wait for a manager: a look takes 100 seconds; then `on_look` is called, until it is true."""

    def __init__(self, on_look: Callable[[], object]) -> None:
        self._on_look = on_look
        self._is_done = False
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += 100.0
        time.sleep(0.01)
        self._is_done = self._is_done or bool(self._on_look())


def test_a_token_file_that_is_not_there_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_TOKEN_FILE", "/nowhere/token")
    refused = start(home)
    assert refused.returncode == EXIT_FAILED
    assert "PROCTOR_TOKEN_FILE: expected a file with a token, found /nowhere/token: No such" in refused.stderr


def test_a_port_in_use_is_said(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = start(home, "--port", str(port))
        assert refused.returncode == EXIT_FAILED
        assert f"port {port} of 127.0.0.1 is in use" in refused.stderr
        with pytest.raises(ManagerNotStarted, match=f"port {port} .* in use"):
            ensure_manager(home, port=port)
    assert not home.manager_file.exists()


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = Home(tmp_path / "file" / "home")
    refused = start(home)
    assert refused.returncode == EXIT_FAILED
    assert "cannot write the home" in refused.stderr
    assert "Traceback" not in refused.stderr
    with pytest.raises(ManagerNotStarted, match="cannot write the home"):
        ensure_manager(home)


@pytest.mark.parametrize("arguments", [("--host", "0.0.0.0"), ("--port", "http")])
def test_a_setting_that_cannot_be_used_is_said(home: Home, arguments: tuple[str, str]) -> None:
    refused = start(home, *arguments)
    assert refused.returncode == EXIT_USAGE
    assert arguments[0] in refused.stderr


def test_changes_are_streamed_and_the_stream_ends_with_the_manager(home: Home) -> None:
    running = ensure_manager(home)
    bearer = {"Authorization": f"Bearer {running.token}"}
    with httpx.stream("GET", f"{running.url}/api/v1/events?after=0", headers=bearer, timeout=30) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: node"
        httpx.post(f"{running.url}/api/v1/shutdown", headers=bearer).raise_for_status()
        assert all(not line.startswith("event: reset") for line in lines)


@pytest.mark.thorough
def test_a_manager_lets_old_events_go_and_tells_a_browser_that_comes_back_after_one_of_them(home: Home) -> None:
    home.prepare()
    connection = open_writer(str(home.control_database), "control")
    connection.execute("BEGIN")
    for _ in range(KEPT_EVENTS + 10):
        events.append(connection, time=1.0, kind=events.TRIAL_STATUS, data={})
    connection.execute("COMMIT")
    connection.close()
    running = ensure_manager(home)
    headers = {"Authorization": f"Bearer {running.token}", "Last-Event-ID": "1"}
    gives_up = time.monotonic() + 60.0
    reported = ""
    while reported != "event: reset":
        assert time.monotonic() < gives_up, f"the first of all events is still there: {reported}"
        with httpx.stream("GET", f"{running.url}/api/v1/events", headers=headers, timeout=30) as answer:
            reported = next(line for line in answer.iter_lines() if line.startswith("event:"))
