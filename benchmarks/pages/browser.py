"""What a person at the dashboard waits for: headless Chromium (`make test-servers`) on an experiment of 10,000 trials.

`PROCTOR_BENCH_MINUTES` says how long pages stay open while trials report 200 metrics a second (default: half a minute).
"""

import asyncio
import gzip
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.table import Row, spread
from proctor.manager.app import prepare
from proctor.manager.sample import SampleSize, fill
from proctor.manager.settings import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

BROWSER = "/usr/bin/chromium-headless-shell"
ASSETS = Path(__file__).parents[2] / "manager/static/assets"
TARGET_SCRIPT_KILOBYTES = 200
TARGET_PAINT_MILLISECONDS = 1000
TARGET_ROUND_TRIP_MILLISECONDS = 150
TARGET_MEGABYTES = 300
TARGET_SHARE = 15
"""Of a core, in percent, for `OPEN_PAGES` at `EVENTS` a second."""
OPEN_PAGES = 5
EVENTS = 200
DEFAULT_MINUTES = 0.5
ROUNDS = 5
REST_MILLISECONDS = 1000
"""Until what a page reads after it is drawn has been read, before it is clicked on."""
_TABLE_IS_DRAWN = "document.querySelectorAll('[role=rowheader]').length > 5"
_CHART_IS_DRAWN = "document.querySelector('[role=img] canvas, canvas') && document.querySelector('.figures')"
_WATCH = """
    const watch = (isDrawn, report) => {
        const after = new MessageChannel();  // its message arrives when the frame was painted
        const look = () => {
            if (!isDrawn()) return requestAnimationFrame(look);
            after.port1.onmessage = () => report(performance.now());
            after.port2.postMessage(null);
        };
        requestAnimationFrame(look);
    };
"""
"""Reports the time, since the request for the page, of the first frame in which something is drawn."""


def measure(quick: bool) -> list[Row]:
    """Rows for the table."""
    from playwright.sync_api import sync_playwright

    size = SampleSize(trials=500 if quick else 10_000, points=5 if quick else 100, parameters=10)
    minutes = float(os.environ.get("PROCTOR_BENCH_MINUTES", "0.1" if quick else DEFAULT_MINUTES))
    with harness.temporary_folder() as folder:
        home = Home(folder / "home")
        prepare(home)
        experiment = asyncio.run(fill(home, size))
        with sync_playwright() as playwright:
            flags = ["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"]
            browser = playwright.chromium.launch(executable_path=BROWSER, args=flags)
            rows = [_script_size()]
            with harness.bare_manager(home.path) as running:
                rows += _paints(browser, running, experiment, f"{size.trials:,} trials: ", 1 if quick else ROUNDS)
            rows += _open_for_long(browser, folder / "live", size, minutes)
            browser.close()
    return rows


def _script_size() -> Row:
    kilobytes = sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in ASSETS.glob("*.js")) / 1000
    target = TARGET_SCRIPT_KILOBYTES
    return Row("all scripts, gzip", "–", f"{kilobytes:.0f} kB", "–", f"< {target} kB", kilobytes < target)


def _paints(browser: "Browser", running: harness.RunningManager, experiment: str, work: str, rounds: int) -> list[Row]:
    """Every round has an empty cache: a context of its own."""
    overview: list[float] = []
    table: list[float] = []
    sorting: list[float] = []
    filtering: list[float] = []
    for _ in range(rounds):
        with visit(browser, running.client.url, str(running.client.token)) as page:
            overview.append(_paint(page, f"{running.client.url}/experiments/{experiment}", _CHART_IS_DRAWN))
        with visit(browser, running.client.url, str(running.client.token)) as page:
            table.append(_paint(page, f"{running.client.url}/experiments/{experiment}/trials", _TABLE_IS_DRAWN))
            page.wait_for_timeout(REST_MILLISECONDS)
            head = page.get_by_role("columnheader", name="momentum").get_by_role("button")
            sorting.append(_click(head, _answered("sort=")))
            page.wait_for_timeout(REST_MILLISECONDS)
            chip = page.locator("button.chip", has_text="failed")
            filtering.append(_click(chip, _answered("filter=")))
    paint, trip = TARGET_PAINT_MILLISECONDS, TARGET_ROUND_TRIP_MILLISECONDS
    return [
        _row(f"{work}first useful paint of the overview, empty cache", overview, paint),
        _row("… of the table of all trials", table, paint),
        _row("… sorted by a parameter, until all is drawn", sorting, trip),
        _row("… filtered by a status, until all is drawn", filtering, trip),
    ]


def _row(what: str, taken: list[float], target: int) -> Row:
    return Row(what, "–", spread(taken, " ms"), "–", f"median < {target} ms", median(taken) < target)


def _answered(part: str) -> str:
    """The address has changed, and the rows are those of the answer."""
    return f"location.search.includes('{part}') && !document.querySelector('.pending') && {_TABLE_IS_DRAWN}"


def _paint(page: "Page", url: str, condition: str) -> float:
    """Milliseconds, as the page itself counts them, from its request to the first frame in which a condition holds."""
    page.add_init_script(f"{_WATCH} watch(() => {condition}, (time) => {{ globalThis.drawnAt = time; }});")
    page.goto(url, wait_until="commit")
    return float(page.wait_for_function("globalThis.drawnAt").json_value())


def _click(element: "Locator", condition: str) -> float:
    """Milliseconds, as the page itself counts them, from a click to the frame in which a condition holds."""
    script = f"""element => {{ {_WATCH}
        const began = performance.now();
        element.click();
        return new Promise((resolve) => watch(() => {condition}, (time) => resolve(time - began)));
    }}"""
    return float(element.evaluate(script))


@contextmanager
def visit(browser: "Browser", url: str, token: str) -> Iterator["Page"]:
    """A page of a new context that has signed in."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    context.request.get(f"{url}/nodes?token={token}", max_redirects=0)
    yield context.new_page()
    context.close()


def _open_for_long(browser: "Browser", folder: Path, size: SampleSize, minutes: float) -> list[Row]:
    """A manager whose trials report all the time, with no page, then with several."""
    command = [sys.executable, "-m", "proctor.manager.sample", "--home", str(folder), "--events", str(EVENTS)]
    command += ["--trials", str(size.trials), "--points", str(size.points), "--parameters", str(size.parameters)]
    process = subprocess.Popen(
        command, env={**os.environ, "PROCTOR_PORT": "0"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url, token, experiment = harness.wait_for(lambda: served(folder), "the sample to be served", 300.0)
        idle = _share(process.pid, minutes * 60)
        context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
        context.request.get(f"{url}/nodes?token={token}", max_redirects=0)
        pages = [context.new_page() for _ in range(OPEN_PAGES)]
        for number, page in enumerate(pages):
            page.goto(f"{url}/experiments/{experiment}{'/trials' if number % 2 else ''}")
            page.wait_for_function(_TABLE_IS_DRAWN if number % 2 else _CHART_IS_DRAWN)
        before = [_heap(page) for page in pages[:2]]
        busy = _share(process.pid, minutes * 60)
        after = [_heap(page) for page in pages[:2]]
        context.close()
    finally:
        process.terminate()
        process.wait(60)
    above, largest = busy - idle, max(after)
    at = f"{EVENTS} metrics a second for {minutes:g} min"
    return [
        Row(
            f"memory of a page's script, {at}", f"at its start: {max(before):.0f} MB", f"{largest:.0f} MB", "–",
            f"< {TARGET_MEGABYTES} MB", largest < TARGET_MEGABYTES,
        ),
        Row(
            f"{OPEN_PAGES} pages open, {at}: CPU of the manager above none", f"none: {idle:.0f} % of a core",
            f"+{above:.0f} %", "–", f"< {TARGET_SHARE} %", above < TARGET_SHARE,
        ),
    ]  # fmt: skip


def served(folder: Path) -> tuple[str, str, str] | None:
    """Address, token and experiment of a sample that is served in a folder; None: not yet."""

    from proctor.manager.process.instance import read_address
    from proctor.sdk.client import Client

    address = read_address(Home(folder))
    if address is None or not (folder / "token").exists():
        return None
    token = (folder / "token").read_text().strip()
    try:
        with Client(address.url, token) as client:
            (experiment,) = client.experiments()
    except Exception:  # it is about to come up
        return None
    return address.url, token, str(experiment["id"])


def _heap(page: "Page") -> float:
    used: Any = page.evaluate("(globalThis.gc?.(), performance.memory.usedJSHeapSize)")
    return float(used) / 1e6


def _share(pid: int, seconds: float) -> float:
    """Percent of a core that a process and those that it has started use meanwhile."""
    before, began = _processor_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (_processor_seconds(pid) - before) / (time.perf_counter() - began) * 100


def _processor_seconds(pid: int) -> float:
    """Of a process, its threads and the processes that it has started, those that have ended included."""
    used = _field(pid, 15) + _field(pid, 16)
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0]) / 1e9
        used += sum(_processor_seconds(int(child)) for child in (task / "children").read_text().split())
    return used


def _field(pid: int, number: int) -> float:
    """A time in /proc/PID/stat in seconds; fields are counted from 0."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[number - 2]) / os.sysconf("SC_CLK_TCK")
