"""A manager while five pages are open, played by clients that send what a page sends: its stream, and what it reads
after events. How late its event loop is while trials report 200 metrics a second, and how many trials a second it runs.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from statistics import median
from typing import Any

import httpx

from benchmarks import harness
from benchmarks.local.short_trials import AT_A_TIME, TRIALS, trial_rate
from benchmarks.pages.browser import EVENTS, OPEN_PAGES, served
from benchmarks.table import Row, spread

SECONDS = 60.0
"""The loop is watched once a second."""
TARGET_LAG_SECONDS = 0.025
TARGET_RATIO = 0.9
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, LARGEST_SHARE = 0.5, 5.0, 1 / 5
"""Between two rounds of a page's requests, and the share of the time that they take: as `webui/src/api/live.ts`."""
ROUNDS = 3
SHARE = 0.99
_OF_OVERVIEW = ("trials?status=RUNNING&status=UNKNOWN&sort=-sequence_id&limit=100", "failures?limit=6", "/nodes")


class Page:
    """Follows the stream, and asks what a page asks after an event: the overview, or the table of the trials."""

    def __init__(self, url: str, token: str, *, is_table: bool) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/api/v1/", headers={"Authorization": f"Bearer {token}"}, timeout=60.0
        )
        self._is_table = is_table
        self._revisions: dict[str, int] = {}
        self._requests = ThreadPoolExecutor()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave with the next event or ping."""
        self._closing.set()
        self._client.close()
        self._thread.join(20)
        self._requests.shutdown()

    def _follow(self) -> None:
        not_before = 0.0
        with suppress(httpx.HTTPError, RuntimeError), self._client.stream("GET", "events") as stream:
            for line in stream.iter_lines():
                if self._closing.is_set():
                    return
                if line.startswith("event:") and time.monotonic() >= not_before:
                    begin = time.monotonic()
                    self._refresh()
                    end = time.monotonic()
                    pause = max(LEAST_PAUSE_SECONDS, (end - begin) / LARGEST_SHARE)
                    not_before = end + min(pause, MOST_PAUSE_SECONDS)

    def _refresh(self) -> None:
        columns = "*,time" if self._is_table else "no,status,value,ended"
        for experiment in self._ask("experiments?limit=1")["items"]:
            place = f"experiments/{experiment['id']}"
            if place not in self._revisions:
                self._revisions[place] = self._ask(f"{place}/table?columns={columns}&limit=100000")["revision"]
            paths = [f"{place}/changes?columns={columns}&after={self._revisions[place]}"]
            for path in () if self._is_table else _OF_OVERVIEW:
                paths.append(path.removeprefix("/") if path.startswith("/") else f"{place}/{path}")
            changes, *_ = self._requests.map(self._ask, paths)  # at once, as a page does
            self._revisions[place] = changes["revision"]

    def _ask(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()


@contextmanager
def open_pages(url: str, token: str) -> Iterator[None]:
    """`OPEN_PAGES` of them, every other one the table."""
    with ExitStack() as pages:
        for number in range(OPEN_PAGES):
            page = Page(url, token, is_table=bool(number % 2))
            pages.callback(page.close)
        yield


def measure(quick: bool) -> list[Row]:
    """Rows for the table."""
    return [_loop_lag(500 if quick else 10_000, 3.0 if quick else SECONDS), _trials(40 if quick else TRIALS, quick)]


def _loop_lag(trials: int, seconds: float) -> Row:
    with harness.temporary_folder() as folder:
        command = [sys.executable, "-m", "proctor.manager.sample", "--home", str(folder / "live")]
        command += ["--events", str(EVENTS), "--trials", str(trials)]
        environment = {**os.environ, "PROCTOR_PORT": "0"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url, token, _ = harness.wait_for(lambda: served(folder / "live"), "the sample to be served", 300.0)
            alone = _lag_while(url, token, seconds)
            with open_pages(url, token):
                time.sleep(2.0)  # they have read their tables
                watched = _lag_while(url, token, seconds)
        finally:
            process.terminate()
            process.wait(60)
    return Row(
        f"{OPEN_PAGES} clients as pages, {EVENTS} metrics a second, {trials:,} trials: 99 of 100 wake-ups of the loop",
        f"no client: at most {alone * 1000:g} ms late",
        f"at most {watched * 1000:g} ms late",
        "–",
        f"< {TARGET_LAG_SECONDS * 1000:g} ms",
        watched <= TARGET_LAG_SECONDS,
    )


def _lag_while(url: str, token: str, seconds: float) -> float:
    """The bound of the distribution below which `SHARE` of the waits were."""
    before = _lags(url, token)
    time.sleep(seconds)
    after = _lags(url, token)
    counts = {bound: after[bound] - before[bound] for bound in after}
    return min(bound for bound, count in counts.items() if count >= SHARE * counts[float("inf")])


def _lags(url: str, token: str) -> dict[float, float]:
    """How many wake-ups were at most so late."""
    text = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"}).raise_for_status().text
    found = {}
    for line in text.splitlines():
        name, _, count = line.rpartition(" ")
        if name.startswith("proctor_loop_lag_seconds_bucket"):
            found[float(name.split('"')[1])] = float(count)
    return found


def _trials(trials: int, quick: bool) -> Row:
    pairs = []
    with harness.manager() as running:
        for _ in range(1 if quick else ROUNDS):
            alone = trial_rate(running, trials)
            with open_pages(running.client.url, str(running.client.token)):
                pairs.append((alone, trial_rate(running, trials)))
    ratio = median(watched / alone for alone, watched in pairs)
    return Row(
        f"{trials} trials of `python trial.py`, Random, {AT_A_TIME} at a time, beside {OPEN_PAGES} clients as pages",
        "no client: " + spread([alone for alone, _ in pairs], "/s"),
        spread([watched for _, watched in pairs], "/s"),
        f"{ratio:.2f}",
        f"≥ {TARGET_RATIO}",
        ratio >= TARGET_RATIO,
    )
