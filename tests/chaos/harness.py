"""A manager under test: a real process in a home of its own, started again when it was killed, spoken to over REST."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from chaos.processes import TAG, tagged
from fakes.armed_places import ArmedPlaces

from proctor.manager.cli.archive import find_contents, write_archive
from proctor.sdk.client import Client
from proctor.sdk.client.errors import ClientError, Conflict, NotFound, ProblemError
from proctor.trial_keeper.linux.identity import start_time

TRIAL_SCRIPT = Path(__file__).with_name("trial_script.py")
EXPERIMENT_ID = "chaos"
MANAGER = [sys.executable, "-P", "-m", "proctor.manager"]
POLL_INTERVAL_SECONDS = 0.03
PATIENCE_SECONDS = 120.0
T = TypeVar("T")


class House:
    """One home and the processes of it.

    :param folder: an empty folder for the home, the ledgers and the output of the managers.
    :param environment: added to that of the manager, and so of all its descendants but the trials.
    :param home: the home, where it does not lie in `folder`.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, home: Path | None = None) -> None:
        self.home = home or folder / "home"
        self.ledgers = folder / "ledgers"
        self.ledgers.mkdir()
        self.prefix: tuple[str | Path, ...] = ()
        """What the managers that are started from now on are started by."""
        self.tag = uuid.uuid4().hex
        self.deaths: list[int] = []
        """The exit codes of managers that have ended without being asked to."""
        self._output = folder / "manager.out"
        self.places = ArmedPlaces(folder / "armed")
        self._environment = {**(environment or {}), **self.places.environment}
        self.options: list[str] = []
        """Given to each manager that is started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    # ---- the manager

    @property
    def manager_pid(self) -> int:
        """Of the manager that was started last."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start a manager; returns at once."""
        self._close_client()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PROCTOR_")}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self.prefix, *MANAGER, "--home", str(self.home), "--port", "0", *self.options],
                env={**kept, **self._environment, TAG: self.tag},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """Whether the manager runs; one that was killed is started again. Reaps it."""
        if self._process is not None and self._process.poll() is None:
            return True
        if self._process is not None:
            self.deaths.append(self._process.returncode)
            assert self._process.returncode == -signal.SIGKILL, f"the manager failed by itself:\n{self.said()}"
        self.start()
        return False

    def refusal(self) -> str:
        """Start a manager that refuses to serve; what it says. The next question starts another one."""
        said_before = self._output.stat().st_size
        self.start()
        assert self._process is not None
        assert self._process.wait(PATIENCE_SECONDS) == 1, self.said()
        self._process = None
        return self._output.read_text()[said_before:]

    def kill_manager(self) -> None:
        """`kill -9` the manager. The next question starts another one."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close_client()
        self._process = None

    def end_manager(self) -> None:
        """Stop the manager; trials keep running. The next request starts another one."""
        self.ask(lambda client: client.shutdown() or True)
        assert self._process is not None
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.said()
        self._close_client()
        self._process = None

    def ask(self, question: Callable[[Client], T]) -> T:
        """Ask the manager over REST, as often and of as many managers as it takes. Raises what no retry helps."""

        def answer() -> T | None:
            if not self.is_up():
                return None
            try:
                if self._client is None:
                    self._client = Client(home=self.home)
                return question(self._client)
            except ClientError as error:
                if isinstance(error, ProblemError) and error.status_code < 500:
                    raise
                self._close_client()
                return None

        return self.wait_for(answer, "an answer of the manager")

    def give(self, command: Callable[[Client], object]) -> None:
        """Give a command, as often and to as many managers as it takes. When one has died meanwhile, it may be refused:
        that manager or the next may have carried it out."""
        deaths = len(self.deaths)

        def attempt(client: Client) -> bool:
            command(client)
            return True

        try:
            self.ask(attempt)
        except (Conflict, NotFound):
            if len(self.deaths) == deaths:
                raise

    def ask_once(self, question: Callable[[Client], T]) -> T:
        """Ask a manager that is up. Raises whatever it answers."""
        self.ask(lambda client: client.health())
        assert self._client is not None
        return question(self._client)

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        """Look until there is something, between looks wait for the manager's end."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while (found := look()) is None:
            if time.monotonic() > gives_up:
                armed = ", ".join(self.places.left()) or "no place"
                raise AssertionError(
                    f"waited {PATIENCE_SECONDS:g} s in vain for {what}; armed is {armed}\n{self.said()}"
                )
            self.pause(POLL_INTERVAL_SECONDS)
        return found

    def wait_for_deaths(self) -> None:
        """Until a process has died at each place that is armed; a manager that has is started again."""
        self.wait_for(lambda: (self.is_up() and not self.places.left()) or None, "deaths at the places that are armed")

    def wait_for_jobs(self, count: int) -> None:
        """Until so many jobs more than now have begun."""
        wanted = len(os.listdir(self.ledgers)) + count
        self.wait_for(lambda: (self.is_up() and len(os.listdir(self.ledgers)) >= wanted) or None, "jobs to begin")

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the manager lives."""
        process = self._process
        if process is None or process.poll() is not None:
            time.sleep(seconds)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)

    def said(self) -> str:
        """For a failing test: the last of what managers, keeper and dispatcher have logged."""
        logs = [self._output, self.home / "nodes/local/log", self.home / "nodes/local/spawner.log"]
        logs += (self.home / "experiments").glob("*/log/dispatcher.log")
        return "\n".join(f"--- {path.name}\n{_tail(path)}" for path in logs if path.exists())

    # ---- the experiment

    def create(self, config: Mapping[str, Any], experiment_id: str = EXPERIMENT_ID) -> None:
        """Create the experiment, however often the manager dies meanwhile."""
        self.ask(lambda client: client.health())

        def attempt(client: Client) -> bool:
            with suppress(NotFound):
                client.experiment(experiment_id)
                return True
            handover = self._hand_over()
            try:
                client.create_experiment(
                    config, directory=TRIAL_SCRIPT.parent, handover=handover, experiment_id=experiment_id
                )
            finally:
                (self.home / "incoming" / handover).unlink(missing_ok=True)
            return True

        self.ask(attempt)

    def trial_command(self, *options: str, steps: int, seconds: tuple[float, float]) -> str:
        """The command of trials that report `steps` intermediate values and run for so long; `options` are those of
        `trial_script.py`."""
        return " ".join(map(str, [sys.executable, "-S", TRIAL_SCRIPT, self.ledgers, steps, *seconds, *options]))

    def status(self, experiment_id: str = EXPERIMENT_ID) -> str:
        """The experiment's."""
        return str(self.ask(lambda client: client.experiment(experiment_id))["status"])

    def wait_until_done(self, experiment_id: str = EXPERIMENT_ID) -> None:
        """Until the experiment is DONE. Fails when it is in ERROR."""

        def done() -> bool | None:
            found = self.ask(lambda client: client.experiment(experiment_id))
            assert found["status"] != "ERROR", f"{found['reason']}\n{found['error']}\n{self.said()}"
            return True if found["status"] == "DONE" else None

        self.wait_for(done, "the experiment to be DONE")

    def stop_experiment(self, experiment_id: str = EXPERIMENT_ID) -> None:
        """Stop it, and wait until it is."""
        self.give(lambda client: client.stop_experiment(experiment_id))
        self.wait_for(lambda: self.status(experiment_id) == "STOPPED" or None, "the experiment to be STOPPED")

    def wait_until_it_asks(self, job: int) -> None:
        """Until this job of the only trial has asked whether it is to stop."""
        asks = f"experiments/{EXPERIMENT_ID}/trials/*/jobs/{job}/can-save"
        self.wait_for(lambda: (self.is_up() and any(self.home.glob(asks))) or None, "the trial to ask")

    # ---- the end

    def finish(self) -> None:
        """Wait until the experiment is DONE and nothing of ours runs any more."""
        self.wait_until_done()
        self.shut_down()

    def shut_down(self) -> None:
        """Have the manager leave over REST, and wait until nothing of ours runs any more.

        Before that, wait until the keeper has forgotten its jobs: one that was killed meanwhile needs a moment.
        """
        records = self.home / "nodes" / "local" / "jobs"
        self.wait_for(
            lambda: True if self.is_up() and not any(records.glob("*")) else None, "the keeper to forget its jobs"
        )
        self.end_manager()
        self.wait_for(lambda: None if tagged(self.tag) else True, f"the end of {tagged(self.tag)}")

    def kill_everything(self) -> None:
        """After a failure: nothing of ours may outlive the test."""
        self._close_client()
        for _ in range(3):
            for pid in tagged(self.tag):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _hand_over(self) -> str:
        """What `create` hands over: the environment of the trials."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROCTOR_", "PYTHON"))}
        name = f"{uuid.uuid4().hex}.json"
        body = {"environment": {**kept, TAG: self.tag}, "cwd": str(TRIAL_SCRIPT.parent), "executable": sys.executable}
        with open(self.home / "incoming" / name, "x") as file:
            json.dump(body, file)
        return name

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def save_archive(client: Client, archive: Path) -> None:
    """Save the experiment, without its code."""
    experiment = client.experiment(EXPERIMENT_ID)
    contents = find_contents(experiment, archive, with_code=False)
    write_archive(client, experiment, contents, archive, lambda count: None)


@contextmanager
def house(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    home: Path | None = None,
    prefix: tuple[str | Path, ...] = (),
    options: tuple[str, ...] = (),
    armed: Iterable[str] = (),
) -> Iterator[House]:
    """A house with a manager in it. On leaving, nothing of it runs.

    :param armed: places that are armed before the manager starts.
    """
    built = House(folder, environment, home=home)
    built.prefix = prefix
    built.options += options
    for place in armed:
        built.places.arm(place)
    built.start()
    try:
        yield built
    finally:
        built.kill_everything()


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 6000))
        return file.read().decode(errors="replace")


__all__ = ["EXPERIMENT_ID", "House", "house", "save_archive", "start_time"]
