"""What Prometheus reads at `/metrics`. Counted in plain numbers; the client library is loaded by the first scrape."""

import asyncio
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import proctor
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.tables import events, jobs
from proctor.manager.store.tables.jobs import JobUsage

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
LAG_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_INTERVAL_SECONDS = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Distribution:
    """Observations counted by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), as the text format wants them."""
        buckets, below = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        return buckets


@dataclass
class Measurements:
    """What is counted while the manager runs."""

    loop_lag: Distribution = field(default_factory=lambda: Distribution(LAG_BOUNDS))
    """Event loop lag: how much later than requested a sleeping task was woken, in seconds."""
    start_latency: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS))
    """From a job's submission to its process, in seconds; of jobs that have started since the first scrape."""
    seen_event: int | None = None
    """Up to which event starts were counted."""

    def count_starts(self, seen_before: int | None, starts: "Starts") -> None:
        """Count what was read after `seen_before`, unless another scrape was faster."""
        if seen_before == self.seen_event:
            self.seen_event = starts.last_event
            for seconds in starts.latencies:
                self.start_latency.observe(seconds)

    async def count_new_starts(self, control: Database) -> None:
        """Count what has started since the last time; nothing before the first time."""
        seen = self.seen_event
        self.count_starts(seen, await control.read(lambda c: read_starts(c, seen)))

    async def count_before_pruning(self, control: Database) -> None:
        """Once the numbers are read at all, events are counted before they are removed."""
        if self.seen_event is not None:
            await self.count_new_starts(control)

    async def measure_loop_lag(self) -> None:
        """Watch the event loop until canceled."""
        while True:
            asked = time.monotonic() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            self.loop_lag.observe(max(0.0, time.monotonic() - asked))


@dataclass(frozen=True)
class Starts:
    """Jobs that have started, as latencies in seconds, up to an event."""

    latencies: list[float]
    last_event: int


def read_starts(connection: sqlite3.Connection, seen: int | None) -> Starts:
    """The starts after the event `seen` (None: from now on). Costs nothing between scrapes, so it is read here; the
    engine does not report it."""
    last = events.last_id(connection)
    latencies: list[float] = []
    cursor = last if seen is None else seen
    while cursor < last:
        rows = events.after(connection, cursor, limit=1000)
        started = [row.job_id for row in rows if row.kind == events.JOB_STATUS and row.data.get("status") == "RUNNING"]
        latencies += [seconds for job_id in started if (seconds := _start_latency(connection, job_id)) is not None]
        cursor = rows[-1].id if rows else last
    return Starts(latencies, last)


def _start_latency(connection: sqlite3.Connection, job_id: str | None) -> float | None:
    try:
        job = jobs.get(connection, job_id or "")
    except RowNotFound:  # deleted with its experiment
        return None
    if job.submitted_at is None or job.started_at is None:
        return None
    return max(0.0, job.started_at - job.submitted_at)


@dataclass(frozen=True)
class ExperimentFigures:
    """What is read from the store for one scrape."""

    trials: Mapping[tuple[str, str], int]
    """How many by (experiment, status)."""
    usage: Mapping[tuple[str, str], JobUsage]
    """By (experiment, node)."""
    healthy: bool
    commits: int


def render(measurements: Measurements, snapshot: ExperimentFigures) -> bytes:
    """The text of a scrape."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Scrape(Collector):
        def collect(self) -> Iterable["Metric"]:
            return _families(measurements, snapshot)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape())
    return bytes(generate_latest(registry))


def _families(measurements: Measurements, snapshot: ExperimentFigures) -> Iterator["Metric"]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    # Trials move between statuses, so by its nature this is a gauge; its name is part of the contract.
    trials = GaugeMetricFamily(
        "proctor_trials_total", "Trials by experiment and status.", labels=["experiment", "status"]
    )
    for (experiment, status), number in sorted(snapshot.trials.items()):
        trials.add_metric([experiment, status], number)
    yield trials
    running = sum(number for (_, status), number in snapshot.trials.items() if status == "RUNNING")
    yield GaugeMetricFamily("proctor_trials_running", "Trials that run now.", value=running)
    # These fall a little when a job ends whose node's clock is behind ours, so they are gauges, too.
    gpus = GaugeMetricFamily(
        "proctor_gpu_seconds",
        "GPU-seconds of trial jobs by experiment and node; those of jobs that run, up to now.",
        labels=["experiment", "node"],
    )
    processors = GaugeMetricFamily(
        "proctor_cpu_seconds",
        "Processor time of trial jobs that have ended, by experiment and node.",
        labels=["experiment", "node"],
    )
    for (experiment, node), usage in sorted(snapshot.usage.items()):
        gpus.add_metric([experiment, node], usage.gpu_seconds)
        processors.add_metric([experiment, node], usage.cpu_seconds)
    yield gpus
    yield processors
    yield HistogramMetricFamily(
        "proctor_trial_start_latency_seconds",
        "From the submission of a trial job to its process.",
        buckets=measurements.start_latency.buckets(),
        sum_value=measurements.start_latency.total,
    )
    yield HistogramMetricFamily(
        "proctor_loop_lag_seconds",
        "Event loop lag: how much later than requested a sleeping task was woken.",
        buckets=measurements.loop_lag.buckets(),
        sum_value=measurements.loop_lag.total,
    )
    yield GaugeMetricFamily("proctor_store_healthy", "1: the store can be written.", value=float(snapshot.healthy))
    yield CounterMetricFamily("proctor_store_commits", "Commits of the control database.", value=snapshot.commits)
    yield InfoMetricFamily("proctor_build", "Who answers.", value={"version": proctor.__version__})
