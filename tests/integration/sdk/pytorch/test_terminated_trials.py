"""SIGTERM, which follows when a trial has not left in time, is met like the request: at a boundary, with a save."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.attempts import make_environment

from proctor.sdk.checkpoints.saving import list_checkpoints
from proctor.sdk.protocol import JOURNAL_FILE

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


RunTrial = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_trial(loaded: str, tmp_path: Path) -> RunTrial:
    """Run a trial's script in a job of its own."""

    def run(script: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "trial.py").write_text(BEGINNING + script)
        environment = {**os.environ, **make_environment(tmp_path)}
        command = [*loaded.split(), str(tmp_path / "trial.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    return run


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
def test_a_terminated_run_saves_at_the_boundary_and_then_ends_by_the_signal(
    run_trial: RunTrial, way: str, tmp_path: Path
) -> None:
    done = run_trial(WAYS[way])
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert saved_steps(tmp_path) == [4]
    assert len(list_checkpoints(str(tmp_path))) == 1


def test_a_handler_of_the_users_is_left_alone(run_trial: RunTrial) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\nfit()"
    done = run_trial(script)
    assert done.returncode == 7, done.stderr


def test_a_process_that_is_forked_meanwhile_can_be_terminated(run_trial: RunTrial) -> None:
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
    done = run_trial(script)
    assert (done.returncode, done.stdout.split()) == (0, ["-15", "True"]), done.stderr
