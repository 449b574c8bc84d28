"""Watching one experiment to its end, and printing the outcome; or waiting until experiments are stopped."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from proctor.manager.cli import columns
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import is_running, machines_kept
from proctor.manager.cli.output import echo, shows_a_screen
from proctor.manager.cli.session import CliSession
from proctor.manager.lifecycle.states import ExperimentStatus

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

MOST_TRIALS = 10
COUNTING = frozenset(status for status in ExperimentStatus if status.counts_time)
"""The statuses in which the time of an experiment runs."""
RECHECK_SECONDS = 10.0
"""How long it is trusted that nothing has changed when no change was reported."""
STOP_SECONDS = 60.0
"""How long `experiment delete` waits until an experiment is STOPPED."""


@dataclass(frozen=True)
class WatchedExperiment:
    """An experiment at one moment: its resource, and the newest of its running trials."""

    experiment: dict[str, Any]
    running: list[dict[str, Any]]
    seen_at: float = field(default_factory=time.monotonic)

    @property
    def active_seconds(self) -> float:
        """How long the experiment has run by now, if nothing has changed since."""
        since = time.monotonic() - self.seen_at if self.experiment["status"] in COUNTING else 0.0
        return float(self.experiment["active_seconds"]) + since

    @property
    def running_now(self) -> list[dict[str, Any]]:
        """The running trials, with how long they have run by now."""
        since = time.monotonic() - self.seen_at
        return [
            row if row.get("run_seconds") is None else {**row, "run_seconds": row["run_seconds"] + since}
            for row in self.running
        ]

    @property
    def line(self) -> str:
        """The progress in one line."""
        experiment = self.experiment
        counts = columns.counts(experiment) or "no trials yet"
        text = f"{columns.progress(experiment)} trials: {counts}; best {columns.best(experiment)}"
        return text if experiment["status"] == "RUNNING" else f"{experiment['status']}: {text}"

    @property
    def why(self) -> str:
        """The newest reason worth showing: the experiment's own, else a running trial's."""
        reasons = [self.experiment["reason"], *(trial["reason"] for trial in self.running)]
        return next((reason for reason in reasons if reason), "")


def read_experiment(client: "Client", experiment_id: str) -> WatchedExperiment:
    """Read it once."""
    experiment = client.experiment(experiment_id)
    running = client.trials(experiment_id, status="RUNNING", sort="-sequence_id", page_size=MOST_TRIALS)
    return WatchedExperiment(experiment, list(islice(running, MOST_TRIALS)) if is_running(experiment) else [])


def watch_experiment(client: "Client", experiment_id: str, deadline: float = inf) -> Iterator[WatchedExperiment]:
    """Read it now and after every change, at most four times a second, until it is no longer active.

    :param deadline: on the monotonic clock; then it ends, too.
    """
    from proctor.sdk.client.events import Watch

    with Watch(client.events(experiment_id=experiment_id)) as watch:
        while True:
            watched = read_experiment(client, experiment_id)
            yield watched
            if not is_running(watched.experiment) or time.monotonic() >= deadline:
                return
            watch.wait(max(0.0, min(RECHECK_SECONDS, deadline - time.monotonic())))


def watch_to_the_end(session: CliSession, experiment_id: str, *, timeout: str | None = None) -> int:
    """Show progress until the experiment ends, then the outcome. The first Ctrl-C stops watching, nothing else.

    :param timeout: how long at most, such as `90s` or `10m`. Raises CommandError where it is no duration.
    """
    seen = watch_experiment(session.client, experiment_id, deadline_of(timeout))
    try:
        if shows_a_screen(sys.stderr):
            from proctor.manager.cli.live import show_live

            last = show_live(seen)
        else:
            last = _print_lines(session, seen)
    except KeyboardInterrupt:
        session.report(f"\nStopped watching; experiment {experiment_id} keeps running.")
        session.report(f"  watch again: proctor top      stop it: proctor stop {experiment_id}")
        return ExitCode.INTERRUPTED
    if is_running(last.experiment):
        session.report(f"Experiment {experiment_id} is still {last.experiment['status']} after {timeout}.")
    else:
        print_outcome(session, last.experiment)
    return outcome_code(last.experiment)


def deadline_of(timeout: str | None) -> float:
    """When so much time is over, on the monotonic clock. Raises CommandError for a text that is no duration."""
    from proctor.sdk.client.config import read_duration

    try:
        seconds = read_duration(timeout)
    except ValueError as error:
        raise CommandError(f"--timeout: {error}", ExitCode.USAGE) from error
    return inf if seconds is None else time.monotonic() + seconds


def outcome_code(experiment: dict[str, Any]) -> ExitCode:
    """How the experiment ended, as an exit code."""
    if is_running(experiment):
        return ExitCode.STILL_RUNNING
    if experiment["status"] == "STOPPED":
        return ExitCode.CANCELLED
    has_no_success = experiment["best"] is None and not experiment["trial_counts"].get("SUCCEEDED")
    return ExitCode.EXPERIMENT_FAILED if experiment["status"] == "ERROR" or has_no_success else ExitCode.OK


def print_outcome(session: CliSession, experiment: dict[str, Any]) -> None:
    """The best trial, its parameters and metric, where its files are, and the page."""
    counted = columns.counts(experiment) or "no trials"
    session.report(f"Experiment {experiment['id']} is {experiment['status']}: {counted}.")
    if experiment["reason"]:
        session.report(f"  {experiment['reason']}")
    if experiment["error"]:
        session.report(experiment["error"].rstrip())
    best = experiment["best"]
    if best is None:
        why = experiment.get("no_best_reason") or "no trial has reported a final metric"
        session.report(f"No best trial: {why}.")
        if experiment.get("failure"):
            session.report(f"{experiment['failure'][0].upper()}{experiment['failure'][1:]}")
        _report_failures(session, experiment)
    else:
        echo(f"Best trial:  {best['sequence_id']} ({best['trial_id']})")
        echo(f"Metric:      {columns.number(best['value'], columns.IN_FULL)} ({experiment['objective']['direction']})")
        echo(f"Parameters:  {columns.parameters(best, columns.IN_FULL)}")
        echo(f"Files:       {session.client.trial(best['trial_id'])['directory']}")
    echo(f"Page:        {session.client.page_url('/experiments/' + experiment['id'])}")
    machines = machines_kept(session.client, {experiment["id"]}).get(experiment["id"])
    if machines and experiment["status"] != "STOPPED":
        session.report(f"It keeps its machines ({', '.join(machines)}) until: proctor stop {experiment['id']}")


def _report_failures(session: CliSession, experiment: dict[str, Any]) -> None:
    failed = list(islice(session.client.trials(experiment["id"], status="FAILED", page_size=1), 1))
    if failed:
        trial = failed[0]
        session.report(f"Trial {trial['sequence_id']} failed: {trial['reason']}")
        session.report(f"  its output: proctor trial log {trial['id']}")


def _print_lines(session: CliSession, seen: Iterator[WatchedExperiment]) -> WatchedExperiment:
    """Progress where there is no screen: one line whenever it has changed."""
    line, last = "", None
    for last in seen:
        if last.line != line:
            line = last.line
            session.report(line)
    assert last is not None, "an experiment was looked at at least once"
    return last


# ---- waiting until experiments are stopped ---------------------------------------------------------------------------


def wait_until_stopped(session: CliSession, experiment_ids: Sequence[str], deadline: float = inf) -> None:
    """Wait until these experiments, which were asked to stop, are STOPPED; report what each is waiting for.

    :param deadline: on the monotonic clock.
    :raises CommandError: it has passed, or one was resumed meanwhile.
    """
    from proctor.sdk.client.events import Watch

    waiting, shown = list(experiment_ids), dict[str, str]()
    with Watch(session.client.events(experiment_id=waiting[0] if len(waiting) == 1 else None)) as watch:
        while True:
            found = [session.client.experiment(identifier) for identifier in waiting]
            for experiment in found:
                reason = f": {experiment['reason']}" if experiment["reason"] else ""
                text = f"Experiment {experiment['id']} is {experiment['status']}{reason}."
                if shown.get(experiment["id"]) != text:
                    session.report(text)
                shown[experiment["id"]] = text
                if experiment["status"] not in ("STOPPING", "STOPPED"):
                    raise CommandError(f"experiment {experiment['id']} was resumed meanwhile", ExitCode.CONFLICT)
            waiting = [experiment["id"] for experiment in found if experiment["status"] != "STOPPED"]
            if not waiting:
                return
            if time.monotonic() >= deadline:
                raise CommandError(f"not stopped in time: {', '.join(waiting)}", ExitCode.STILL_RUNNING)
            watch.wait(max(0.0, min(RECHECK_SECONDS, deadline - time.monotonic())))
