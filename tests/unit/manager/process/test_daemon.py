"""Starting a manager in the background: the wait for it lasts as long as it lives, under a clock that runs ahead."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proctor.manager.process import daemon
from proctor.manager.process.daemon import ManagerNotStarted, ensure_manager, stop_manager
from proctor.manager.process.instance import InstanceLock, read_holder
from proctor.manager.settings import Home

HELD_MANAGER = f"""#!{sys.executable}
import os, sys
from pathlib import Path
from proctor.manager.process.instance import AlreadyRunning, InstanceLock, ManagerAddress, write_address
from proctor.manager.settings import Home

home = Home(Path(sys.argv[sys.argv.index("--home") + 1]))
try:
    with InstanceLock(home) as lock:
        lock.report("opening and checking the control database")
        with open(home.path / "gate") as gate:
            if gate.read() == "fail":
                sys.exit("proctor manager: the disk is gone")
        write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1"))
        with open(home.path / "gate") as gate:
            gate.read()
except AlreadyRunning as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
"""A manager that stays where it is until something is written into the pipe `gate`, serves, and ends at the next."""


class HeldManagers:
    """Managers that come up when they are let go, and the time of those who wait for one: a look takes 100 seconds."""

    def __init__(self, home: Home, program: Path) -> None:
        self.home = home
        self.program = program
        self.now = 0.0
        self.said: list[str] = []
        self.is_let_go = False
        self.on_look: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(0.001)
        self.now += 100.0
        self.on_look()

    def is_held(self) -> bool:
        """Whether one has said what it does."""
        holder = read_holder(self.home)
        return holder is not None and holder.is_alive() and "control database" in holder.stage

    def let_go(self, word: str = "go") -> None:
        """Write into the pipe, once, when someone reads."""
        if self.is_let_go:
            return
        with suppress(OSError):
            descriptor = os.open(self.home.path / "gate", os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, word.encode())
            os.close(descriptor)
            self.is_let_go = True

    def ensure(self) -> daemon.RunningManager:
        return ensure_manager(self.home, report=self.said.append)


@pytest.fixture
def held(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldManagers]:
    program = tmp_path / "held-manager"
    home.token_file.write_text("a-token")
    os.mkfifo(home.path / "gate")
    program.write_text(HELD_MANAGER)
    program.chmod(0o700)
    managers = HeldManagers(home, program)
    monkeypatch.setattr(daemon.sys, "executable", str(program))
    monkeypatch.setattr(daemon, "time", managers)
    yield managers
    holder = read_holder(home)
    if holder is not None and holder.pid != os.getpid() and holder.is_alive():
        os.kill(holder.pid, signal.SIGKILL)
        os.waitpid(holder.pid, 0)


def test_a_manager_that_takes_longer_than_any_limit_is_waited_for_and_its_stage_is_shown(held: HeldManagers) -> None:
    looks = []

    def look() -> None:
        if held.is_held():
            looks.append(held.now)
            if len(looks) == 5:
                held.let_go()

    held.on_look = look
    running = held.ensure()
    assert running.address.is_of(held.home)
    assert "opening and checking the control database" in held.said[-1]
    assert f"pid {running.address.pid}" in held.said[-1]
    assert len(held.said) <= held.now / daemon.REPEAT_SECONDS
    assert len(looks) >= 5


SLOW_TO_END = """
import os, signal, sys, time
from pathlib import Path
from proctor.manager.process.instance import InstanceLock, ManagerAddress, write_address
from proctor.manager.settings import Home

home = Home(Path(sys.argv[1]))
with InstanceLock(home):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    write_address(home, ManagerAddress.of_this_process(host="127.0.0.1", port=1, url="http://127.0.0.1:1"))
    print("up", flush=True)
    signal.sigwait([signal.SIGTERM])
    sys.stdin.read()
"""
"""A manager that is not done with what it was asked before its input ends."""


def test_a_stop_takes_as_long_as_the_manager_needs_and_says_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(daemon, "REPEAT_SECONDS", 0.001)
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_END, str(home.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        ours, theirs = process.stdin, process.stdout
        assert ours is not None
        assert theirs is not None
        assert theirs.readline() == b"up\n"

        def hear(sentence: str) -> None:
            said.append(sentence)
            if len(said) == 5:
                ours.close()

        assert stop_manager(home, report=hear)
    assert f"Waiting for the manager (pid {process.pid}, 0 s) to end. Its log: {home.manager_log}" == said[0]
    assert len(said) >= 5
    assert not stop_manager(home)


def test_nothing_is_said_of_a_start_that_is_quick(held: HeldManagers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "QUIET_SECONDS", float("inf"))
    held.on_look = held.let_go
    held.ensure()
    assert held.said == []


def test_a_manager_that_ends_while_it_is_waited_for_is_reported_with_what_it_printed(held: HeldManagers) -> None:
    held.on_look = lambda: held.let_go("fail")
    with pytest.raises(ManagerNotStarted, match=r"^the disk is gone$"):
        held.ensure()


def test_interrupting_the_wait_says_that_the_manager_continues_and_how_to_end_it(held: HeldManagers) -> None:
    def interrupt() -> None:
        if held.is_held():
            raise KeyboardInterrupt

    held.on_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        held.ensure()
    holder = read_holder(held.home)
    assert holder is not None
    assert holder.is_alive()
    assert f"`kill {holder.pid}` ends it" in held.said[-1]


def test_another_manager_that_comes_up_is_waited_for_and_replaced_when_it_ends_before(held: HeldManagers) -> None:
    other = subprocess.Popen([held.program, "--home", held.home.path])
    while not held.is_held():
        time.sleep(0.01)

    def look() -> None:
        if any(f"pid {other.pid}," in text for text in held.said) and other.poll() is None:
            other.kill()
            other.wait()
        elif other.returncode is not None:
            held.let_go()

    held.on_look = look
    assert held.ensure().address.pid != other.pid


def test_another_manager_that_was_faster_is_used(held: HeldManagers) -> None:
    other = subprocess.Popen([held.program, "--home", held.home.path])
    while not held.is_held():
        time.sleep(0.01)

    def look() -> None:
        if any(f"pid {other.pid}," in text for text in held.said):
            held.let_go()

    held.on_look = look
    assert held.ensure().address.pid == other.pid
    other.kill()
    other.wait()


def test_a_home_whose_holder_is_not_seen_here_is_refused(held: HeldManagers) -> None:
    with InstanceLock(held.home):
        held.home.lock_file.write_text("999999999 1\nstarting\n")  # on another machine that shares the file system
        with pytest.raises(ManagerNotStarted, match=r"a manager runs on the home .* already: pid 999999999, starting"):
            held.ensure()
