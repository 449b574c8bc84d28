"""The end of a test run says what was left out and what the tests have cost; `tests/run` counts daemons, too."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SAMPLE = """\
import pytest

@pytest.mark.parametrize("n", range(4))
def test_passes(n): pass

@pytest.mark.thorough
def test_is_thorough(): pass

@pytest.mark.parametrize("n", range(3))
def test_needs_something(n): pytest.skip("no %d" % n)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run of SAMPLE prints, on two workers."""
    folder = tmp_path_factory.mktemp("sample")
    folder.joinpath("test_sample.py").write_text(SAMPLE)
    folder.joinpath("pytest.ini").write_text("[pytest]\nmarkers = thorough: left out\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "-p",
        "costs",
        "--costs",
        "-n",
        "2",
        "-m",
        "not thorough",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_what_was_left_out_is_said_with_the_way_to_run_it(printed: str) -> None:
    assert "Left out: 1 tests by -m 'not thorough'; `make test-all` runs them, too" in printed


def test_what_was_skipped_is_said_in_few_lines(printed: str) -> None:
    lines = [line for line in printed.splitlines() if line.startswith(("Left out", "Skipped", "`make test-servers`"))]
    assert lines[1] == "Skipped: 1 tests: no 0"
    assert "Skipped: 1 tests for 1 more reasons; -rs lists them" in lines
    assert len(lines) == 5


def test_the_cost_of_each_folder_and_of_the_slowest_tests_is_printed(printed: str) -> None:
    assert re.search(r"\d\.\d s +7 tests +in all, on all workers", printed)
    assert re.search(r"\d\.\d s +test_sample\.py::test_passes\[0\]", printed)


BURNING_DAEMON = """\
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 1: pass
        os.write(writer, b"done")
    os._exit(0)
os.wait()
os.read(reader, 4)
"""


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command under `tests/run`, with the /tmp of this test."""
    environment = {**os.environ, "TMPDIR": os.curdir}
    return subprocess.run([TESTS / "run", *command], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_processor_time_of_a_daemon_whose_parent_has_ended_is_counted() -> None:
    done = run(sys.executable, "-c", BURNING_DAEMON)
    found = re.search(r"Processor time: ([\d.]+) s", done.stdout)
    assert found, done.stdout
    assert float(found[1]) >= 1
    assert "Killed" not in done.stdout


def test_a_daemon_that_is_left_is_named_and_killed() -> None:
    done = run(sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '4321']).pid)")
    pid, rest = done.stdout.split("\n", maxsplit=1)
    assert rest.endswith("Killed 1 daemons that no test has ended:\n  sleep 4321\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_the_status_of_the_command_is_passed_on() -> None:
    assert run("sh", "-c", "exit 3").returncode == 3
    assert run("sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
