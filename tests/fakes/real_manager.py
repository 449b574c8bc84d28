"""A real manager for tests: a process in a home of its own with real keepers, dispatchers and trials behind it."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from chaos.processes import TAG, tagged

from proctor.manager.process.instance import read_address
from proctor.manager.settings import Home
from proctor.sdk.client import Client
from proctor.sdk.client.events import Watch

PATIENCE_SECONDS = 90.0
POLL_INTERVAL_SECONDS = 0.05
T = TypeVar("T")
Row = dict[str, Any]


class RealManager:
    """One manager of one home, and a client of it. Made by `real_manager`.

    :param environment: added to that of the manager, and so of its keeper.
    """

    def __init__(self, home: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        self.tag = uuid.uuid4().hex
        self.logs: list[Callable[[], list[Path]]] = [self._own_logs]
        """What a failing test shows."""
        self.wrapper: list[str] = []
        """A command that runs the manager's command."""
        self._output = folder / "manager.out"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PROCTOR_")}
        self.environment = {**kept, **environment, TAG: self.tag}
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Client

    def start(self, port: int = 0) -> None:
        """Start it; returns when it serves. `port`: 0 for any."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *self.wrapper,
                    sys.executable,
                    "-P",
                    "-m",
                    "proctor.manager",
                    "--home",
                    str(self.home),
                    "--port",
                    str(port),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.poll_for(lambda: read_address(Home(self.home)), "the manager's address")
        self.client = Client(home=self.home)

    def kill(self) -> None:
        """`kill -9` the manager; what it has started keeps running."""
        assert self._process is not None
        self.client.close()
        self._process.kill()
        self._process.wait()

    def until_killed(self) -> None:
        """Wait until it has died at a fail point; what it has started keeps running."""
        assert self._process is not None
        assert self._process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, self.said()
        self.client.close()

    def signal(self, number: int) -> None:
        """Send the manager's process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def said(self) -> str:
        """For a failing test: what manager and keeper have said."""
        logs = [self._output, *(path for find in self.logs for path in find())]
        return "\n".join(f"--- {path}\n{path.read_text()[-6000:]}" for path in logs if path.exists())

    def _own_logs(self) -> list[Path]:
        return [self.home / "log/manager.log", self.home / "nodes/local/log"]

    def create(
        self,
        script: str,
        *arguments: object,
        experiment_id: str | None = None,
        before: str = "",
        interpreter: str = f"{sys.executable} -S",
        secrets: Mapping[str, str] | None = None,
        **config: Any,
    ) -> str:
        """A new experiment whose trials run this Python, with `before` at the head of their command; returns its id.
        A key of `config` that is None is left out.

        :param secrets: what is handed over, by path in the configuration.
        """
        name = f"trial-{uuid.uuid4().hex}.py"
        (self.code / name).write_text(script)
        body = {
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "trialCommand": " ".join([*filter(None, [before]), interpreter, name, *map(str, arguments)]),
            "trialCodeDirectory": str(self.code),
            "trialConcurrency": 1,
            "objective": {"direction": "maximize"},
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local"},
            **config,
        }
        body = {key: value for key, value in body.items() if value is not None}
        created = self.client.create_experiment(
            body, directory=self.code, handover=self.hand_over(secrets or {}), experiment_id=experiment_id
        )
        return str(created["id"])

    def trials(self, experiment_id: str) -> list[Row]:
        """Its trials, the first one first."""
        return list(self.client.trials(experiment_id, sort="sequence_id"))

    def until(self, look: Callable[[], T | None], what: str) -> T:
        """Look now and after every change that the manager reports, until there is something.

        It gives up once the manager has reported nothing for a while: what imports PyTorch and more takes long on a
        busy machine, and the tests' own limit ends what never does.
        """
        gives_up = time.monotonic() + PATIENCE_SECONDS
        with Watch(self.client.events()) as watch:
            while not (found := look()):
                assert time.monotonic() < gives_up, f"waited in vain for {what}\n{self.said()}"
                if watch.wait(1.0):
                    gives_up = time.monotonic() + PATIENCE_SECONDS
        return found

    def until_status(self, experiment_id: str, *statuses: str) -> Row:
        """The experiment once it is in one of these statuses."""

        def look() -> Row | None:
            found = self.client.experiment(experiment_id)
            if found["status"] == "ERROR" and "ERROR" not in statuses:
                raise AssertionError(f"{found['reason']}\n{found['error']}\n{self.said()}")
            return found if found["status"] in statuses else None

        return self.until(look, f"experiment {experiment_id} to be {' or '.join(statuses)}")

    def poll_for(self, look: Callable[[], T | None], what: str) -> T:
        """Look until there is something: for what no event tells of."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while not (found := look()):
            assert time.monotonic() < gives_up, f"waited in vain for {what}\n{self.said()}"
            time.sleep(POLL_INTERVAL_SECONDS)
        return found

    def command_line(self, *words: object) -> str:
        """Run `proctor …` on this home; returns its stdout."""
        done = self.attempt(*words)
        assert done.returncode == 0, f"proctor {words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """The same, whatever comes of it."""
        running = self.spawn(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            output, errors = running.communicate(timeout=PATIENCE_SECONDS)
        except BaseException:
            running.kill()
            running.communicate()
            raise
        return subprocess.CompletedProcess(running.args, running.returncode, output, errors)

    def spawn(self, *words: object, **options: Any) -> "subprocess.Popen[str]":
        """Start `proctor …` on this home; `options` are those of Popen."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "proctor.manager.cli.main", *map(str, words)],
            env={**self.environment, "PROCTOR_HOME": str(self.home)},
            text=True,
            **options,
        )

    def end(self) -> None:
        """Nothing of it may outlive the test."""
        with suppress(AttributeError):
            self.client.close()
        for _ in range(3):
            for pid in tagged(self.tag):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def hand_over(self, secrets: Mapping[str, str]) -> str:
        """What `create` hands over: the environment of the trials."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROCTOR_", "PYTHON"))}
        name = f"{uuid.uuid4().hex}.json"
        body = {"environment": {**kept, TAG: self.tag}, "cwd": str(self.code), "executable": sys.executable}
        body["secrets"] = dict(secrets)
        with open(self.home / "incoming" / name, "x") as file:
            json.dump(body, file)
        return name


@contextmanager
def real_manager(
    folder: Path,
    *,
    home: Path | None = None,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> Iterator[RealManager]:
    """A manager that serves. On leaving, nothing of it runs.

    :param folder: for the code of trials, and for the home where none is named.
    :param wrapper: a command that runs the manager's command.
    """
    made = RealManager(folder / "home" if home is None else home, folder, environment or {})
    made.wrapper = list(wrapper)
    try:
        made.start()
        yield made
    finally:
        made.end()
