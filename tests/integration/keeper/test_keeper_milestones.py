"""control.json names a job's milestone until the job is to stop."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_node import Node, eventually

from proctor.sdk.protocol import ENV_JUDGED_RANK, NO_MILESTONE, WAITS_FILE, boot_time, read_wait, read_waits
from proctor.trial_keeper.linux.identity import is_alive
from proctor.trial_keeper.protocol import Cancel, EndReason, Update

pytestmark = pytest.mark.anyio

TRIAL = """
import os, sys
import proctor
proctor.should_stop()
for step in range(1, 100):
    proctor.report(step, step=step)
    print(step, flush=True)
    if asked := proctor.stop_request():
        print(asked.request, asked.reason, flush=True)
        while not os.path.exists(os.environ["PROCTOR_OUTPUT_DIR"] + "/go"):
            pass
        sys.exit()
"""
PATIENT = {ENV_JUDGED_RANK: "0", "PROCTOR_VERDICT_SECONDS": "600"}


async def start(node: Node, milestone: int | None) -> None:
    """Start a job, which runs up to its milestone."""
    output = node.job_directory("T.1") / "output"
    output.mkdir(parents=True)
    (output / "trial.py").write_text(TRIAL)
    command = f"{sys.executable} $PROCTOR_OUTPUT_DIR/trial.py"
    await node.begin(command, milestone=milestone, environment=PATIENT)
    if milestone is not None:
        await steps(node, milestone - 1)


def control(node: Node) -> Any:
    """What control.json says."""
    return json.loads((node.job_directory("T.1") / "control.json").read_text())


def update(milestone: int | None, seconds: float | None = None) -> Update:
    return Update("T.1", "token of T.1", max_duration_seconds=seconds, milestone=milestone)


async def steps(node: Node, count: int) -> None:
    """Wait until the trial has come back from that many reports."""
    await eventually(lambda: len(node.output("T.1").splitlines()) >= count)
    assert len(node.output("T.1").splitlines()) == count


async def test_a_trial_runs_from_milestone_to_milestone_under_whatever_keeper(node: Node) -> None:
    await start(node, 3)
    await node.manager.command(update(None, seconds=600.0))  # it knows no milestone
    record = Path(node.records.record_file("T.1"))
    await eventually(lambda: json.loads(record.read_text())["launch"]["max_duration_seconds"] == 600)
    assert control(node) == {"milestone": 3}
    await node.manager.command(update(6))
    await steps(node, 5)
    await node.kill()
    await node.manager.forget_session()
    await node.start()
    assert control(node) == {"milestone": 6}
    await node.manager.command(update(8))
    await steps(node, 7)
    await node.manager.command(update(NO_MILESTONE))
    await node.manager.end_of("T.1")
    await steps(node, 99)
    assert control(node) == {}


async def test_a_milestone_that_cannot_be_written_is_written_once_it_can(node: Node) -> None:
    await start(node, 3)
    obstacle = node.job_directory("T.1") / "control.json.new"
    obstacle.mkdir()
    await node.manager.command(update(6), node.launch("U.1", "true"))
    await node.manager.end_of("U.1")
    assert control(node) == {"milestone": 3}
    obstacle.rmdir()
    await steps(node, 5)
    await node.manager.command(update(NO_MILESTONE))
    await node.manager.end_of("T.1")


async def test_a_stop_ends_the_wait_and_takes_the_place_of_the_milestone(node: Node) -> None:
    await start(node, 3)
    stop = Cancel("T.1", "token of T.1", request="pause", reason="waits in rung 1", save_seconds=60.0)
    await node.manager.command(stop)
    await steps(node, 4)
    assert node.output("T.1").splitlines()[-2:] == ["3", "pause waits in rung 1"]
    await node.manager.command(update(9), update(NO_MILESTONE), node.launch("U.1", "true"))
    await node.manager.end_of("U.1")
    assert control(node)["stop"] is True
    (node.job_directory("T.1") / "output" / "go").touch()
    await node.manager.end_of("T.1")


async def test_a_job_without_a_milestone_has_no_control_file(node: Node) -> None:
    await start(node, None)
    await node.manager.end_of("T.1")
    assert not (node.job_directory("T.1") / "control.json").exists()


async def test_the_duration_limit_does_not_count_waits_for_verdicts(node: Node) -> None:
    await start(node, 1)  # it waits in its first report
    waits = node.job_directory("T.1") / WAITS_FILE
    await eventually(lambda: waits.exists() and float(waits.read_text().split()[1]) > 0)
    began = node.process("T.1").started_boot
    assert began is not None
    limit = float(waits.read_text().split()[1]) - began + 0.2  # of which all but 0.2 seconds are used up
    await node.manager.command(update(None, seconds=limit))
    await eventually(lambda: boot_time() > began + limit + 1.0)
    assert is_alive(node.process("T.1").trial.pid, node.process("T.1").trial.started)
    await node.manager.command(update(None, seconds=0.0))
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.DEADLINE
    assert end.run_seconds is not None
    assert 1.0 < end.verdict_seconds < end.run_seconds


async def test_a_trial_that_was_killed_in_its_wait_and_started_again_in_its_job_waits_no_more(node: Node) -> None:
    output = node.job_directory("T.1") / "output"
    output.mkdir(parents=True)
    first = "import os, proctor; print(os.getpid(), flush=True); proctor.report(1, step=1)"
    again = (
        "import os, proctor; proctor.should_stop(); print('again', flush=True)\n"
        "while not os.path.exists(os.environ['PROCTOR_OUTPUT_DIR'] + '/go'): pass"
    )
    (output / "first.py").write_text(first)
    (output / "again.py").write_text(again)
    command = f"{sys.executable} $PROCTOR_OUTPUT_DIR/first.py; {sys.executable} $PROCTOR_OUTPUT_DIR/again.py"
    await node.begin(command, milestone=1, environment=PATIENT)
    await node.manager.until(lambda: node.manager.headers[-1].waiting)
    os.kill(int(node.output("T.1")), signal.SIGKILL)
    await eventually(lambda: node.output("T.1").endswith("again\n"))
    waits = (node.job_directory("T.1") / WAITS_FILE).read_bytes()
    assert read_wait(waits, boot_time()) == (0.0, 0.0)
    assert read_waits(waits, boot_time()) > 0.0
    await node.manager.until(lambda: not node.manager.headers[-1].waiting)
    (output / "go").touch()
    await node.manager.end_of("T.1")
