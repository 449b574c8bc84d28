"""Trials on machines over SSH: their rate against the local one, the wait for the first one, a report's way through the
forward."""

import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.local.reports import report_rate
from benchmarks.local.short_trials import trial_rate
from benchmarks.machines.ssh_machines import Machines, machines
from benchmarks.table import Row, spread

TRIALS = 150
MACHINES = 3
SLOTS = 4
MANY = 10
REPORTS = 20_000
SINGLE_REPORTS = 100
TARGET_RATE_RATIO = 0.6
TARGET_START_RATIO = 1.5
TARGET_MILLISECONDS = 150
TARGET_REPORTS = 10_000


def first_trial_seconds(running: harness.RunningManager, service: dict[str, object], stamps: Path) -> float:
    """From the request that creates an experiment to the first line of its first trial."""
    stamps.unlink(missing_ok=True)
    started = time.time()
    experiment = running.create(
        command=f"bash sleeper.sh {stamps} 0.1", trialConcurrency=1, maxTrialNumber=1, trainingService=service
    )
    first = harness.wait_for(lambda: _first_stamp(stamps), "the first trial to start")
    running.finish(experiment)
    running.stop(experiment)
    return first - started


def _first_stamp(stamps: Path) -> float | None:
    words = stamps.read_text().split() if stamps.exists() else []
    return float(words[1]) if len(words) > 1 else None


def _has_left(running: harness.RunningManager) -> bool | None:
    return None if any(node["kind"] == "remote" for node in running.client.nodes()) else True


def report_milliseconds(running: harness.RunningManager, service: dict[str, object], reports: int) -> list[float]:
    """How long each report took from the trial's call until it was stored and the change was written down."""
    experiment = running.create(
        command=f"{sys.executable} reporter.py {reports} 0.05",
        trialConcurrency=1,
        maxTrialNumber=1,
        trainingService=service,
    )
    running.finish(experiment)
    stored = _stored_at(running, experiment)
    (trial,) = running.client.trials(experiment)
    rows = list(running.client.metrics(trial["id"], kind="intermediate"))
    if len(rows) != reports:
        raise harness.BenchmarkError(f"expected {reports} reports, found {len(rows)}")
    running.stop(experiment)
    return [(stored[row["id"]] - row["value"]) * 1000 for row in rows]


def _stored_at(running: harness.RunningManager, experiment: str) -> dict[int, float]:
    """When each metric of an experiment that is DONE was stored, by its id."""
    moments = {}
    with closing(running.client.events(experiment_id=experiment, after=0)) as stream:
        for event in stream:
            if event["kind"] == "metrics":
                time = datetime.fromisoformat(event["time"]).timestamp()
                moments.update(dict.fromkeys(range(event["data"]["first"], event["data"]["last"] + 1), time))
            if event["kind"] == "experiment.status" and event["data"]["status"] == "DONE":
                return moments
    raise harness.BenchmarkError("the stream of changes ended")


def _rates(running: harness.RunningManager, group: Machines, trials: int, repeats: int) -> Row:
    """Local and remote take turns. A first experiment keeps the machines connected, as the local keeper is."""
    local, remote = [], []
    kept = _connect(running, group.service(MACHINES))
    for _ in range(repeats):
        local.append(trial_rate(running, trials, at_a_time=MACHINES * SLOTS))
        remote.append(trial_rate(running, trials, at_a_time=MACHINES * SLOTS, service=group.service(MACHINES)))
    running.stop(kept)
    ratio = median(reached / reference for reached, reference in zip(remote, local, strict=True))
    return Row(
        f"{trials} no-op trials on {MACHINES} machines over SSH, {SLOTS} slots each",
        "local, as many at a time: " + spread(local, "/s"),
        spread(remote, "/s"),
        f"{ratio:.2f}",
        f"≥ {TARGET_RATE_RATIO} of local",
        ratio >= TARGET_RATE_RATIO,
    )


def _connect(running: harness.RunningManager, service: dict[str, object]) -> str:
    """An experiment that is DONE, and whose machines stay connected until it is stopped."""
    experiment = running.create(
        command=f"{sys.executable} short.py",
        trialConcurrency=MACHINES * SLOTS,
        maxTrialNumber=MACHINES * SLOTS,
        trainingService=service,
    )
    running.finish(experiment)
    return experiment


def _starts(running: harness.RunningManager, group: Machines, stamps: Path, repeats: int) -> list[Row]:
    """On machines that another experiment uses already; and on machines on which there is nothing yet."""
    kept = _connect(running, group.service(MANY))
    seen = [_start_both(running, group, stamps, wait=False) for _ in range(repeats)]
    running.stop(kept)
    _until_left(running)
    cold = [_start_both(running, group, stamps, wait=True) for _ in range(repeats)]
    ratio = median(many / one for one, many in seen)
    return [
        Row(
            f"first trial running after `create` on {MANY} machines already seen",
            "on 1 machine: " + spread([one for one, _ in seen], " s", 2),
            spread([many for _, many in seen], " s", 2),
            f"{ratio:.2f}",
            f"≤ {TARGET_START_RATIO} ×",
            ratio <= TARGET_START_RATIO,
        ),
        Row(
            "… on machines never seen: login, keeper and code included (all of them share these cores)",
            "on 1 machine: " + spread([one for one, _ in cold], " s", 2),
            spread([many for _, many in cold], " s", 2),
            f"{median(many / one for one, many in cold):.2f}",
            "–",
            None,
        ),
    ]


def _start_both(running: harness.RunningManager, group: Machines, stamps: Path, *, wait: bool) -> tuple[float, float]:
    """Seconds to the first trial on one machine, then on many; with `wait`, until the machines are left in between."""
    seconds = []
    for number in (1, MANY):
        seconds.append(first_trial_seconds(running, group.service(number), stamps))
        if wait:
            _until_left(running)
    return seconds[0], seconds[1]


def _until_left(running: harness.RunningManager) -> None:
    harness.wait_for(lambda: _has_left(running), "the machines to be left", 120.0, pause_seconds=0.05)


def _reports(running: harness.RunningManager, group: Machines, quick: bool, repeats: int) -> list[Row]:
    """One report's way, and how many get through."""
    service = group.service(MACHINES)
    kept = _connect(running, service)
    milliseconds = report_milliseconds(running, service, 20 if quick else SINGLE_REPORTS)
    rates = [report_rate(running, 1_000 if quick else REPORTS, service)[0] for _ in range(repeats)]
    running.stop(kept)
    return [
        Row(
            "one report through the forward → stored",
            "–",
            spread(milliseconds, " ms"),
            "–",
            f"median ≤ {TARGET_MILLISECONDS} ms",
            median(milliseconds) <= TARGET_MILLISECONDS,
        ),
        Row(
            f"reports through the forward, 4 trials on {MACHINES} machines, until readable over REST",
            "–",
            spread(rates, "/s", 0),
            "–",
            f"≥ {TARGET_REPORTS:,}/s",
            median(rates) >= TARGET_REPORTS,
        ),
    ]


def measure(quick: bool) -> list[Row]:
    """Five rows."""
    repeats = 1 if quick else 5
    with harness.manager() as running, machines(MANY) as group, harness.temporary_folder() as folder:
        return [
            _rates(running, group, 24 if quick else TRIALS, repeats),
            *_starts(running, group, folder / "stamps", repeats),
            *_reports(running, group, quick, repeats),
        ]
