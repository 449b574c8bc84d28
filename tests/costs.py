"""A pytest plugin that says at the end of a run what was left out, and with `--costs` what the tests have cost.

It runs in the process that reports (with xdist: the controller). Deselected tests are known to the workers only, which
collect; they send their number with the output of their session.
"""

from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest
from xdist.workermanage import WorkerController

FOLDER_DEPTH = 3
"""Folders are summed up to this depth: `tests/unit/manager`."""
SLOWEST = 20
MAX_REASONS = 2
LEFT_OUT = "left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs`."""
    parser.addoption("--costs", action="store_true", help="print seconds by folder and the slowest tests")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Count in the workers, and report where there is a terminal to report to."""
    counter = LeftOut(config)
    config.pluginmanager.register(counter)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs(config, counter))


class LeftOut:
    """Number of tests that the markers of this run leave out."""

    def __init__(self, config: pytest.Config) -> None:
        self.deselected = 0
        self._config = config

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count them where they are collected."""
        self.deselected += len(items)

    def pytest_sessionfinish(self) -> None:
        """In a worker: send the number to the controller."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[LEFT_OUT] = self.deselected


class Costs:
    """Seconds of each test, and the tests that did not run."""

    def __init__(self, config: pytest.Config, left_out: LeftOut) -> None:
        self._config = config
        self._left_out = left_out
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """A worker has ended. All workers collect the same tests."""
        output = getattr(node, "workeroutput", {})
        self._left_out.deselected = max(self._left_out.deselected, output.get(LEFT_OUT, 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add each phase of each test, of all workers."""
        self._seconds[report.nodeid] += report.duration
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was left out, and with `--costs` what the rest has cost."""
        if self._config.getoption("costs"):
            self._print_costs(terminalreporter)
        for line in self._not_run():
            terminalreporter.write_line(line)

    def _print_costs(self, terminal: pytest.TerminalReporter) -> None:
        folders: defaultdict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._seconds.items():
            folders[_folder(nodeid)].append(seconds)
        terminal.section("seconds by folder")
        for folder, each in sorted(folders.items(), key=lambda item: -sum(item[1])):
            terminal.write_line(f"{sum(each):8.1f} s  {len(each):6} tests  {folder}")
        terminal.write_line(
            f"{sum(self._seconds.values()):8.1f} s  {len(self._seconds):6} tests  in all, on all workers"
        )
        terminal.section(f"the {SLOWEST} slowest tests")
        for nodeid, seconds in sorted(self._seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
            terminal.write_line(f"{seconds:8.1f} s  {nodeid}")

    def _not_run(self) -> list[str]:
        """Return at most five lines about the tests that did not run."""
        number, chosen = self._left_out.deselected, self._config.option.markexpr
        lines = []
        if number and chosen and not self._config.option.keyword:  # a keyword leaves out what no one wants to know of
            lines.append(f"Left out: {number:,} tests by -m {chosen!r}; `make test-all` runs them, too")
        reasons = sorted(self._skipped.items(), key=lambda item: (-item[1], item[0]))
        lines += [f"Skipped: {number:,} tests: {reason}" for reason, number in reasons[:MAX_REASONS]]
        if more := reasons[MAX_REASONS:]:
            number = sum(number for _, number in more)
            lines.append(f"Skipped: {number:,} tests for {len(more)} more reasons; -rs lists them")
        if reasons:
            lines.append("`make test-servers` (as root, on Debian) installs the programs that tests need")
        return lines


def _folder(nodeid: str) -> str:
    """Return the folder of a test, up to FOLDER_DEPTH."""
    return "/".join(PurePosixPath(nodeid.partition("::")[0]).parent.parts[:FOLDER_DEPTH])
