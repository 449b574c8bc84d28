"""80,000 intermediate reports until all are readable over REST, and what one report costs the trial."""

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.table import Row, spread

TRIALS = 4
REPORTS = 20_000
BATCH = 1_000
TARGET_RATE = 20_000
TARGET_MICROSECONDS = 20


def file_and_sqlite_rate(folder: Path, lines: int) -> float:
    """Reports per second of the least that can be done: lines to a file, lines to SQLite in batches, synced."""
    journal, database = folder / "lines", folder / "lines.db"
    started = time.perf_counter()
    with journal.open("w") as file:
        for step in range(lines):
            file.write(json.dumps({"t": time.time(), "k": "intermediate", "v": step / lines}) + "\n")
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY, line TEXT)")
    with journal.open() as file:
        while batch := [(line,) for line in islice(file, BATCH)]:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO reports (line) VALUES (?)", batch)
            connection.execute("COMMIT")
    (stored,) = connection.execute("SELECT count(*) FROM reports").fetchone()
    connection.close()
    seconds = time.perf_counter() - started
    for path in folder.glob("lines*"):
        path.unlink()
    if stored != lines:
        raise harness.BenchmarkError(f"expected {lines} lines stored, found {stored}")
    return lines / seconds


@contextmanager
def sse_reader(running: harness.RunningManager, experiment: str) -> Iterator[list[int]]:
    """One client on the stream of changes; yields the ids it has seen."""
    stream, seen = running.client.events(experiment_id=experiment, after=0), []

    def read() -> None:
        for event in stream:
            seen.append(event["id"])

    thread = threading.Thread(target=read, name="sse reader", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stream.close()
        thread.join(5)


def report_rate(
    running: harness.RunningManager, reports: int, service: Mapping[str, Any] | None = None
) -> tuple[float, list[dict[str, Any]]]:
    """Reports per second, from the first trial's first report to the last being readable; and the final metrics.

    :param service: the `trainingService`; None: local.
    """
    experiment = running.create(
        command=f"{sys.executable} chatty.py {reports}",
        assessor={"name": "Medianstop", "classArgs": {"optimize_mode": "maximize"}},
        trialConcurrency=TRIALS,
        maxTrialNumber=TRIALS,
        trainingService=dict(service or {"platform": "local"}),
    )
    with sse_reader(running, experiment) as seen:

        def all_readable() -> list[dict[str, Any]] | None:
            rows = list(running.client.trials(experiment))
            stored = sum(row["intermediate_count"] for row in rows)
            return rows if stored == TRIALS * reports else None

        harness.wait_for(all_readable, "all reports to be readable", 300.0, pause_seconds=0.05)
        readable = time.time()
        running.finish(experiment)
    rows = list(running.client.trials(experiment))
    for row in rows:
        _check_readable(running, row["id"], reports)
    if not seen:
        raise harness.BenchmarkError("the SSE client saw no event")
    running.stop(experiment)
    finals = [row["final_data"] for row in rows]
    return TRIALS * reports / (readable - min(final["began"] for final in finals)), finals


def _check_readable(running: harness.RunningManager, trial: str, reports: int) -> None:
    """Every report is there, once and in order."""
    values = [row["value"] for row in running.client.metrics(trial, kind="intermediate")]
    if values != [step / reports for step in range(reports)]:
        raise harness.BenchmarkError(f"trial {trial}: expected {reports} reports in order, found {len(values)}")


def measure(quick: bool) -> list[Row]:
    """Two rows: the rate of all, and the time of one."""
    reports, repeats = (1_000, 1) if quick else (REPORTS, 5)
    plain, reached, medians = [], [], []
    with harness.temporary_folder() as folder, harness.manager() as running:
        for _ in range(repeats):
            plain.append(file_and_sqlite_rate(folder, TRIALS * reports))
            rate, finals = report_rate(running, reports)
            reached.append(rate)
            medians += [final["median_us"] for final in finals]
    ratios = [rate / reference for rate, reference in zip(reached, plain, strict=True)]
    return [
        Row(
            f"{TRIALS} trials × {reports:,} intermediate reports, Medianstop, one SSE client, until readable over REST",
            "file and SQLite: " + spread(plain, "/s", 0),
            spread(reached, "/s", 0),
            f"{median(ratios):.2f}",
            f"≥ {TARGET_RATE:,}/s",
            median(reached) >= TARGET_RATE,
        ),
        Row(
            "one report_intermediate_result inside the trial (those of the row above)",
            "–",
            spread(medians, " µs"),
            "–",
            f"median ≤ {TARGET_MICROSECONDS} µs",
            median(medians) <= TARGET_MICROSECONDS,
        ),
    ]
