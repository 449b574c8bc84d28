"""`Experiment`: NNI's Python API for one experiment, on a manager that may run many and is started if none runs."""

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from proctor.sdk.client.client import Client
from proctor.sdk.client.config import COMMAND_LINE, ExperimentConfig, RunMode, read_duration, read_mapping
from proctor.sdk.client.credentials import (
    caller_environment,
    find_secrets,
    secret_variables,
    take_secrets,
)
from proctor.sdk.client.errors import ClientError, Conflict, ManagerNotStarted, ManagerUnreachable, NotFound
from proctor.sdk.client.events import Watch
from proctor.sdk.client.home import ENV_HOME, ENV_URL, find_home
from proctor.sdk.client.results import Results, TrialJob, TrialMetricData, TrialResult, metric_data, numbers
from proctor.sdk.client.transport import JsonObject

_PROGRESS = "Waiting for the manager "
"""How `proctor manager start` begins what it says of a start that takes long."""
FINISHED = frozenset({"DONE", "ERROR", "STOPPED", "VIEWED"})
"""Statuses in which an experiment is no longer active."""
RECHECK_SECONDS = 10.0
"""How long a wait trusts that nothing has changed when no change was reported."""
TABLE_ROWS = 10_000
"""Of a table that are asked for at a time."""
PROGRESS_SECONDS = 10.0
"""No progress is printed more often than this, unless the status has changed."""
Source = ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str] | Sequence[str]


class Experiment:
    """One experiment: to be started from a configuration, or there already and named by its id.

    What is started or resumed is printed on stderr with its page; while a call waits for its end, so is progress.

    `config` is an ExperimentConfig, a mapping with the keys of the YAML, the path of a YAML file, or the name of a
    platform ("local"), which gives an empty `config` to fill in.
    """

    def __init__(
        self,
        config: Source | None = None,
        id: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self.id: str | None = id
        self.home: Path = find_home(home)
        self._directory = Path.cwd()
        self._client: Client | None = None
        self._mode = RunMode.Background
        self.config: Any = self._read(config)

    # Start and stop

    def start(self, port: int | None = None, debug: bool = False, run_mode: RunMode = RunMode.Background) -> None:
        """Start the experiment and return; a manager is started if none runs.

        :param port: where a manager that must be started listens; one that runs stays where it is.
        :param run_mode: whether the experiment is stopped when this process ends (Detach: it is not).
        Raises MissingSecret (a ValueError) for a password that the configuration names and that is not there.
        """
        if self.config is None:
            raise ValueError("there is no configuration to start; give one, or call resume() or view()")
        mapping = self.config.to_mapping() if isinstance(self.config, ExperimentConfig) else dict(self.config)
        clean, secret_values = take_secrets({**mapping, "debug": True} if debug else mapping)
        secret_values |= find_secrets(mapping)
        client = self._open(port)
        with caller_environment(client.home, secret_values=secret_values, without=secret_variables(mapping)) as name:
            created = client.create_experiment(clean, directory=self._directory, handover=name, experiment_id=self.id)
        self.id = created["id"]
        self._announce()
        self._leave_at_exit(run_mode)

    def run(
        self,
        port: int | None = None,
        wait_completion: bool = True,
        debug: bool = False,
        run_mode: RunMode = RunMode.Background,
    ) -> bool | None:
        """Start the experiment and wait for its end: True when it is done, False when it ended in ERROR.

        Without `wait_completion` it returns None at once and the experiment continues when this process ends.
        """
        if not wait_completion:
            self.start(port, debug, RunMode.Detach)
            return None
        self.start(port, debug, run_mode)
        return self._wait_or_stop()

    def resume(self, port: int | None = None, wait_completion: bool = True, debug: bool = False) -> bool | None:
        """Resume the stopped experiment `id`; one that is being stopped is waited for. The rest is as in `run`."""
        identifier, client = self._need_id(), self._open(port)
        wait_while_stopping(client, identifier, self._report_stopping)
        client.resume_experiment(identifier)
        self._announce()
        if not wait_completion:
            return None
        self._leave_at_exit(RunMode.Background)
        return self._wait_or_stop()

    def run_or_resume(self, port: int | None = None, wait_completion: bool = True, debug: bool = False) -> bool | None:
        """Resume the experiment `id` if there is one, else run it."""
        if self.id is not None:
            with suppress(NotFound):
                self._open(port).experiment(self.id)
                return self.resume(port, wait_completion, debug)
        return self.run(port, wait_completion, debug)

    def view(self, port: int | None = None, non_blocking: bool = False) -> "Experiment":
        """Open the experiment `id` for reading: a stopped one is VIEWED until it is stopped or resumed.

        Returns at once; the manager keeps serving its page.
        :param non_blocking: do not print the page's address.
        """
        identifier, client = self._need_id(), self._open(port)
        if wait_while_stopping(client, identifier, self._report_stopping)["status"] == "STOPPED":
            client.view_experiment(identifier)
        if not non_blocking:
            print(f"Experiment {identifier}: {self.url}")
        return self

    @classmethod
    def connect(
        cls, port: int | None = None, id: str | None = None, *, home: str | os.PathLike[str] | None = None
    ) -> "Experiment":
        """Attach to a running experiment: the one named, else the only one that runs.

        :param port: of a manager on this machine other than the home's own.
        """
        experiment = cls(None, id, home=home)
        url = None if port is None else f"http://127.0.0.1:{port}"
        experiment._client = Client(url, home=experiment.home)
        if id is None:
            running = [item["id"] for item in experiment._client.experiments() if item["status"] not in FINISHED]
            if len(running) != 1:
                found = f"{len(running)} are running: {', '.join(running)}" if running else "none is running"
                raise Conflict(f"name the experiment by its id; {found}", status_code=409)
            experiment.id = running[0]
        else:
            experiment._client.experiment(id)
        experiment._mode = RunMode.Detach
        return experiment

    def stop(self) -> None:
        """Stop the experiment; it can be resumed. Nothing happens when it has ended already."""
        if self.id is not None and self.get_status() not in FINISHED - {"VIEWED"}:
            self.client.stop_experiment(self.id)

    def wait(self, timeout_seconds: float | None = None, on_change: Callable[[JsonObject], None] | None = None) -> bool:
        """Wait until it is no longer active. Returns True for DONE; raises TimeoutError when the time is over.

        :param on_change: called with the experiment, as the REST API gives it, at first and after every change.
        """
        identifier = self._need_id()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with Watch(self.client.events(experiment_id=identifier)) as watch:
            while True:
                experiment = self.get_experiment_profile()
                status = str(experiment["status"])
                if on_change is not None:
                    on_change(experiment)
                if status in FINISHED:
                    break
                rest = RECHECK_SECONDS if deadline is None else deadline - time.monotonic()
                if rest <= 0:
                    raise TimeoutError(f"experiment {identifier} is still {status} after {timeout_seconds} s")
                watch.wait(min(rest, RECHECK_SECONDS))
        return status == "DONE"

    # Reading

    @property
    def client(self) -> Client:
        """The client of the manager that the experiment is on."""
        return self._open(None)

    @property
    def url(self) -> str:
        """Its page, with the token."""
        return self.client.page_url(f"/experiments/{self._need_id()}")

    def get_status(self) -> str:
        """Its status, such as RUNNING or DONE."""
        return str(self.get_experiment_profile()["status"])

    def get_experiment_profile(self) -> JsonObject:
        """Everything about the experiment, as the REST API gives it."""
        return self.client.experiment(self._need_id())

    def get_experiment_metadata(self, exp_id: str) -> JsonObject:
        """Another experiment of the same manager."""
        return self.client.experiment(exp_id)

    def get_all_experiments_metadata(self) -> list[JsonObject]:
        """All experiments of the manager."""
        return list(self.client.experiments(archived=None))

    def get_trial_job(self, trial_job_id: str) -> TrialJob:
        """One trial."""
        return TrialJob.from_resource(self.client.trial(trial_job_id))

    def list_trial_jobs(self) -> list[TrialJob]:
        """All trials."""
        return [TrialJob.from_resource(trial) for trial in self.client.trials(self._need_id())]

    def get_job_statistics(self) -> list[JsonObject]:
        """How many trials are in each status: `trialJobStatus`, `trialJobNumber`."""
        counts = self.get_experiment_profile()["trial_counts"]
        return [{"trialJobStatus": status, "trialJobNumber": number} for status, number in counts.items()]

    def get_job_metrics(self, trial_job_id: str | None = None) -> dict[str, list[TrialMetricData]]:
        """By trial id: its visible curve and its final metric, of one trial or of all."""
        client = self.client
        trials = client.trials(self._need_id()) if trial_job_id is None else [client.trial(trial_job_id)]
        return {
            trial["id"]: metric_data(
                [*client.trial_curve(trial["id"]), *_first_final(client, trial["id"])],
                trial["parameter_id"],
            )
            for trial in trials
        }

    def export_data(self) -> list[TrialResult]:
        """Parameters and final metric of the trials that succeeded and have one, as in NNI; `results` has all."""
        rows = self.client.export(self._need_id(), status="SUCCEEDED")
        valued = (row for row in rows if row["value"] is not None)
        return [TrialResult(row["parameter"], numbers(row["value"]), row["trial_id"]) for row in valued]

    @property
    def direction(self) -> str:
        """Which values are better: "maximize" or "minimize", as the manager has decided it."""
        return str(self.get_experiment_profile()["objective"]["direction"])

    def best(self) -> JsonObject | None:
        """The best trial so far: trial_id, sequence_id, value, parameters; None while there is none."""
        best = self.client.best(self._need_id())
        return None if best is None else {**best, "value": numbers(best["value"])}

    def results(self) -> Results:
        """All trials as they are now."""
        return Results(self.client, self._need_id())

    def table(
        self, filter: str | None = None, sort: Sequence[str] = (), columns: Sequence[str] = ("*",)
    ) -> list[dict[str, Any]]:
        """Its trials, each a dictionary of columns: `pandas.DataFrame(experiment.table("lr < 1e-3"))`.

        :param filter: only the trials that it lets through: `status = SUCCEEDED and lr < 1e-3`.
        :param sort: columns, each with a `-` for the greatest first.
        :param columns: names; `*` for all that are stored, `parameter.*`, `value.*`.
        """
        rows: list[dict[str, Any]] = []
        while True:
            part = self.client.table(
                self._need_id(), filter=filter, sort=sort, columns=columns, offset=len(rows), limit=TABLE_ROWS
            )
            names = [column["name"] for column in part["columns"]]
            rows += [dict(zip(names, row, strict=True)) for row in part["rows"]]
            if len(part["rows"]) < TABLE_ROWS:
                return rows

    def failures(self) -> list[JsonObject]:
        """Why trials have failed, the most frequent cause first: end_reason, detail, trials, nodes, example."""
        return list(self.client.failures(self._need_id())["causes"])

    def importance(self, *, key: str | None = None, quantile: float = 0.1) -> dict[str, float]:
        """How much each parameter matters for being among the best trials, the greatest first; the sum is 1. Empty
        where nothing can be said, such as with few trials.

        :param key: of the final metric, nested ones with dots; None: its number.
        :param quantile: the share of the trials that are the best.
        """
        found = self.client.importance(self._need_id(), key=key, quantile=quantile)
        return {each["name"]: each["importance"] for each in found["parameters"]}

    # Changes

    def update_trial_concurrency(self, value: int) -> None:
        """How many trials run concurrently."""
        self._update(trial_concurrency=value)

    def update_max_experiment_duration(self, value: str | float | None) -> None:
        """How long trials are created: seconds, or `10m`, `1.5h`, `2d`; None for no limit."""
        self._update(max_experiment_duration_seconds=read_duration(value))

    def update_max_gpu_hours(self, value: float | None) -> None:
        """How many GPU-hours all trials may use before no new ones start; None for no limit."""
        self._update(max_gpu_hours=value)

    def update_priority(self, value: int) -> None:
        """Which experiment gets free GPUs first: the one with the higher priority."""
        self._update(priority=value)

    def update_tags(self, *values: str) -> None:
        """All tags that the experiment has from now on."""
        self._update(tags=list(values))

    def archive(self, archived: bool = True) -> None:
        """Have lists of experiments leave it out once it has ended; False: list it again."""
        self._update(archived=archived)

    def update_max_trial_number(self, value: int | None) -> None:
        """How many trials are created; None for no limit."""
        self._update(max_trial_number=value)

    def update_search_space(self, value: Any) -> None:
        """Where the tuner searches from now on."""
        self._update(search_space=value)

    def kill_trial_job(self, trial_job_id: str) -> None:
        """End a trial."""
        self.client.kill_trial(trial_job_id)

    def pause_trial(self, trial_id: str) -> None:
        """Stop a trial, which may save first, and keep it PAUSED until it is resumed."""
        self.client.pause_trial(trial_id)

    def resume_trial(self, trial_id: str) -> None:
        """Have a PAUSED trial run again, from its newest checkpoint."""
        self.client.resume_trial(trial_id)

    def clone_trial(self, trial_id: str, parameters: Mapping[str, Any]) -> str:
        """Continue from a trial's newest checkpoint, as a new trial with these values in place of some of its own;
        returns its id."""
        return str(self.client.clone_trial(trial_id, parameters)["id"])

    def retry_trial_job(self, trial_job_id: str) -> None:
        """Run the parameters of an ended trial again."""
        self.client.retry_trial(trial_job_id)

    def _update(self, **changes: Any) -> None:
        self.client.update_experiment(self._need_id(), changes)

    def _need_id(self) -> str:
        if self.id is None:
            raise ValueError("the experiment has not been started; call run(), start(), or give its id")
        return self.id

    def _open(self, port: int | None) -> Client:
        if self._client is None:
            self._client = connect_or_start(self.home, port=port)
        return self._client

    def _read(self, source: Source | None) -> ExperimentConfig | dict[str, Any] | None:
        if source is None or isinstance(source, ExperimentConfig):
            return source
        if isinstance(source, Mapping):
            return dict(source)
        if isinstance(source, (str, os.PathLike)) and Path(source).suffix in (".yml", ".yaml", ".json"):
            path = Path(source)
            self._directory = path.parent.absolute()
            return read_mapping(path)
        return ExperimentConfig(source)

    def _announce(self) -> None:
        print(f"Experiment {self.id}: {self.url}", file=sys.stderr)

    @staticmethod
    def _report_stopping(experiment: JsonObject) -> None:
        why = f" ({experiment['reason']})" if experiment["reason"] else ""
        print(f"Experiment {experiment['id']} is still being stopped{why}; waiting", file=sys.stderr)

    def _leave_at_exit(self, mode: RunMode) -> None:
        self._mode = mode
        if mode is not RunMode.Detach:
            atexit.register(self._stop_quietly)

    def _stop_quietly(self) -> None:
        with suppress(ClientError):
            self.stop()

    def _wait_or_stop(self) -> bool:
        try:
            return self.wait(None, ProgressReport())
        except KeyboardInterrupt:
            self._stop_quietly()
            raise
        finally:
            atexit.unregister(self._stop_quietly)


class ProgressReport:
    """Prints an experiment's progress on stderr, a line at a time, when it has changed."""

    def __init__(self) -> None:
        self._line, self._status = "", ""
        self._printed_at = float("-inf")

    def __call__(self, experiment: JsonObject) -> None:
        """Print where the experiment is, unless a line was printed a moment ago."""
        status, now = experiment["status"], time.monotonic()
        line = _progress(experiment)
        if line == self._line or (status == self._status and now - self._printed_at < PROGRESS_SECONDS):
            return
        self._line, self._status, self._printed_at = line, status, now
        print(line, file=sys.stderr)


def _progress(experiment: JsonObject) -> str:
    counts, limit, best = experiment["trial_counts"], experiment["max_trial_number"], experiment["best"]
    live = ("WAITING", "RUNNING", "PAUSED")
    ended = sum(number for status, number in counts.items() if status not in live)
    described = ", ".join(f"{number} {status.lower().replace('_', ' ')}" for status, number in counts.items() if number)
    of_all = "" if limit is None else f" of {limit}"
    trials = f"{ended}{of_all} trials ended" + (f" ({described})" if described else "")
    found = "" if best is None else f"; best {numbers(best['value']):.6g} (trial {best['sequence_id']})"
    why = f"; {experiment['reason']}" if experiment["reason"] else ""
    return f"Experiment {experiment['id']} is {experiment['status']}: {trials}{found}{why}"


def wait_while_stopping(client: Client, experiment_id: str, report: Callable[[JsonObject], None]) -> JsonObject:
    """Wait until an experiment that is being stopped has stopped; returns it as it is then.

    :param report: called once if there is something to wait for.
    """
    experiment = client.experiment(experiment_id)
    if experiment["status"] != "STOPPING":
        return experiment
    report(experiment)
    with Watch(client.events(experiment_id=experiment_id)) as watch:
        while (experiment := client.experiment(experiment_id))["status"] == "STOPPING":
            watch.wait(RECHECK_SECONDS)
    return experiment


def _first_final(client: Client, trial_id: str) -> list[JsonObject]:
    """The final metric of a trial that counts, if there is one."""
    return list(islice((row for row in client.metrics(trial_id, kind="final") if row["counts"]), 1))


def connect_or_start(home: Path, *, port: int | None = None) -> Client:
    """A client of the home's manager, which is started if it does not run.

    :param port: where a manager that must be started listens; one that runs stays where it is.
    Raises ManagerNotStarted with the manager's own words.
    """
    try:
        client = Client(home=home)
        client.health()
    except ManagerUnreachable:
        if os.environ.get(ENV_URL):
            raise
    else:
        return client
    start_manager(home, port=port)
    return Client(home=home)


def start_manager(home: Path, *, port: int | None = None) -> None:
    """Run `proctor manager start` with this interpreter and wait until the manager serves, as long as it lives; what is
    said about a start that takes long goes to stderr. Raises ManagerNotStarted."""
    command = [*COMMAND_LINE, "manager", "start"]
    command += [] if port is None else ["--port", str(port)]
    said = []
    with subprocess.Popen(
        command,
        env={**os.environ, ENV_HOME: str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.startswith(_PROGRESS):
                sys.stderr.write(line)
            else:
                said.append(line)
    if starting.returncode:
        problem = "".join(said).strip().removeprefix("Error: ")
        raise ManagerNotStarted(problem or f"exit code {starting.returncode}")
