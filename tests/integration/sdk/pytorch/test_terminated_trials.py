"""SIGTERM, which follows when a trial has not left in time, is met like the request: at a boundary, with a save."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.attempts import make_environment

from proctor.sdk.checkpoints.saving import list_checkpoints
from proctor.sdk.protocol import JOURNAL_FILE

TESTS = Path(__file__).parents[3]
BEGINNING = """
import os, signal
from fakes.recording_model import RangeData
from proctor.sdk.pytorch import Model, Trainer
from proctor.sdk.pytorch.plain import open_run, remaining_batches, save_if_due


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


class Terminated(Model):
    def train_step(self, batch, state):
        if state.global_iteration == 4:
            terminate()


def fit():
    trainer = Trainer("run", use_cpu=True, total_steps=1000, train_unit="iteration")
    return trainer.fit(Terminated(), RangeData(3))
"""


def run_trial(job: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a trial's script in a job of its own."""
    environment = {**os.environ, **make_environment(job), "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}"}
    return subprocess.run(
        [sys.executable, "-c", BEGINNING + script], env=environment, capture_output=True, text=True, timeout=120
    )


def saved_steps(job: Path) -> "list[int]":
    """The steps of the registered checkpoints."""
    records = map(json.loads, (job / JOURNAL_FILE).read_text().splitlines())
    return [record["step"] for record in records if record["kind"] == "checkpoint"]


WAYS = {
    "trainer": "fit()\nprint('returned', flush=True)",
    "open_run": """
with open_run("run", dict, dataset=range(9)) as run:
    for _ in remaining_batches(run):
        if run.state.global_iteration == 4:
            terminate()
        if save_if_due(run):
            break
print('returned', flush=True)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_terminated_run_saves_at_the_boundary_and_then_ends_by_the_signal(way: str, tmp_path: Path) -> None:
    done = run_trial(tmp_path, WAYS[way])
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert saved_steps(tmp_path) == [4]
    assert len(list_checkpoints(str(tmp_path))) == 1


def test_a_handler_of_the_users_is_left_alone(tmp_path: Path) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nfit()"
    done = run_trial(tmp_path, script)
    assert done.returncode == 7, done.stderr


def test_a_process_that_is_forked_meanwhile_can_be_terminated(tmp_path: Path) -> None:
    script = """
from proctor.sdk.pytorch.trial import deferring_termination

with deferring_termination():
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(there, b"!")
        signal.pause()
    os.read(here, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
    done = run_trial(tmp_path, script)
    assert (done.returncode, done.stdout.split()) == (0, ["-15", "True"]), done.stderr
