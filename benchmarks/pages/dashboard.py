"""What a page costs the manager: the table of 10,000 trials with 10 parameters, of 100 points each."""

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks import harness
from benchmarks.table import Row, spread
from proctor.manager.app import prepare
from proctor.manager.sample import SampleSize, fill
from proctor.manager.settings import Home

BINARY = "application/vnd.proctor.columns"
TARGET_CPU_MILLISECONDS = 100
TARGET_MEGABYTES = 1.5
TARGET_ROUND_TRIP_MILLISECONDS = 150
TARGET_UNCHANGED_MILLISECONDS = 5
ROUNDS = 5


class Page:
    """The requests of a page to one experiment of a running manager."""

    def __init__(self, running: harness.RunningManager, experiment_id: str) -> None:
        self._pid = running.process.pid
        self._client = httpx.Client(
            base_url=f"{running.client.url}/api/v1/experiments/{experiment_id}/",
            headers={"Authorization": f"Bearer {running.client.token}"},
            timeout=60.0,
        )

    def ask(self, path: str, *, tag: str = "", **query: Any) -> httpx.Response:
        """An answer, in the binary format where there is one; 304 if it still has the `tag`."""
        answer = self._client.get(path, params=query, headers={"Accept": BINARY, "If-None-Match": tag})
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            answer.raise_for_status()
        return answer

    def get(self, path: str, **query: Any) -> bytes:
        """The body of an answer."""
        return self.ask(path, **query).content

    def processor_milliseconds(self, work: Callable[[], object]) -> float:
        """How much processor time the manager uses meanwhile."""
        before = self._processor_seconds()
        work()
        return (self._processor_seconds() - before) * 1000

    def _processor_seconds(self) -> float:
        """To the nanosecond, of all its threads."""
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{self._pid}/task").iterdir())
            / 1e9
        )


def milliseconds(work: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(quick: bool) -> list[Row]:
    """Rows for the table."""
    size = SampleSize(trials=500 if quick else 10_000, points=5 if quick else 100, parameters=10)
    rounds = 1 if quick else ROUNDS
    with harness.temporary_folder() as folder:
        home = Home(folder / "home")
        prepare(home)
        experiment_id = asyncio.run(fill(home, size))
        with harness.bare_manager(home.path) as running:
            page = Page(running, experiment_id)
            work = f"{size.trials:,} trials × {size.parameters} parameters: "
            return [
                *_whole_table(page, work, rounds),
                *_parts(page, rounds),
                _news(page, rounds),
                *_curves(page, rounds),
            ]


def _whole_table(page: Page, work: str, rounds: int) -> list[Row]:
    whole = page.get("table", limit=100_000)
    used = [page.processor_milliseconds(partial(page.get, "table", limit=100_000)) for _ in range(rounds)]
    megabytes = len(whole) / 1e6
    return [
        Row(
            f"{work}the whole table, binary: CPU of the manager",
            "–",
            spread(used, " ms"),
            "–",
            f"median ≤ {TARGET_CPU_MILLISECONDS} ms",
            median(used) <= TARGET_CPU_MILLISECONDS,
        ),
        Row(
            "… its size",
            "–",
            f"{megabytes:.2f} MB",
            "–",
            f"≤ {TARGET_MEGABYTES} MB",
            megabytes <= TARGET_MEGABYTES,
        ),
    ]


def _parts(page: Page, rounds: int) -> list[Row]:
    """What a click on a header and a new filter cost, for the first 200 rows."""
    asked: dict[str, dict[str, str]] = {
        "sorted by a parameter": {"sort": "-momentum"},
        "sorted by a nested parameter": {"sort": "model.width"},
        "filtered": {"filter": "status = SUCCEEDED and lr < 1e-2 and value > 0.8"},
        "filtered and sorted": {"filter": "optimizer = adam or model = cnn", "sort": "-value"},
    }
    rows = []
    for what, query in asked.items():
        taken = [milliseconds(partial(page.get, "table", limit=200, **query)) for _ in range(rounds)]
        rows.append(
            Row(
                f"… 200 rows of it, {what}: round trip",
                "–",
                spread(taken, " ms"),
                "–",
                f"median ≤ {TARGET_ROUND_TRIP_MILLISECONDS} ms",
                median(taken) <= TARGET_ROUND_TRIP_MILLISECONDS,
            )
        )
    return rows


def _news(page: Page, rounds: int) -> Row:
    """What a page asks after an event of another trial: most often little has changed."""
    newest = json.loads(page.get("changes", after=0, columns="no"))["revision"]
    used = [
        page.processor_milliseconds(partial(page.get, "changes", after=newest - back)) for back in range(1, rounds + 1)
    ]
    return Row("… changes of a few trials: CPU of the manager", "–", spread(used, " ms"), "–", "–", None)


def _curves(page: Page, rounds: int) -> list[Row]:
    """The curves of all trials, and again while nothing has changed; how many pass through each cell of a chart."""
    tag = page.ask("curves").headers["ETag"]
    first = [page.processor_milliseconds(partial(page.get, "curves")) for _ in range(rounds)]
    again = [page.processor_milliseconds(partial(page.ask, "curves", tag=tag)) for _ in range(rounds)]
    density = [page.processor_milliseconds(partial(page.get, "curves/density", width=1000 - n)) for n in range(rounds)]
    return [
        Row(
            "… curves of all trials: CPU of the manager",
            "–",
            spread(first, " ms"),
            "–",
            f"median ≤ {TARGET_CPU_MILLISECONDS} ms",
            median(first) <= TARGET_CPU_MILLISECONDS,
        ),
        Row(
            "… the same, nothing has changed (304)",
            "–",
            spread(again, " ms"),
            "–",
            f"median ≤ {TARGET_UNCHANGED_MILLISECONDS} ms",
            median(again) <= TARGET_UNCHANGED_MILLISECONDS,
        ),
        Row("… density of all curves: CPU of the manager", "–", spread(density, " ms"), "–", "–", None),
    ]
