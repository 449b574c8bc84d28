"""Trials whose machine is lost, and that are paused on one machine and resumed on another: their curves have no seam,
and the trainer comes to what an undisturbed run comes to, to the last bit."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.machines.machine import Machine
from fakes.machines.person import ADMINISTRATOR
from fakes.machines.scene import NODE_TIMEOUT, Scene
from fakes.s3_server import BUCKET, s3_server, stored_in

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TRAIN = """\
import hashlib, os, sys, time

import torch

import proctor
from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, StopReason, Trainer

GATES, LAST = (30, 60), 80
torch.set_num_threads(1)


class Net(Model):
    def setup(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 7, gamma=0.9)

    def train_step(self, batch, state):
        loss = (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.log({"default": loss})
        while root is None and state.global_iteration in GATES and not proctor.should_stop():
            if os.path.exists("/run/machine/records/go"):
                break
            time.sleep(0.02)


class Rows(DataModule):
    def setup(self):
        rows = torch.rand(40, 4, generator=torch.Generator().manual_seed(3))
        self.add_train_phase(rows, DataLoaderParams(batch_size=4, shuffle=True))


root = sys.argv[1] if len(sys.argv) > 1 else None  # which a trial has not
model = Net()
trainer = Trainer("run", train_unit="iteration", total_steps=LAST, chkpt_frequency=10, chkpt_root=root, use_cpu=True)
outcome = trainer.fit(model, Rows())
if outcome.reason is not StopReason.REQUESTED:
    state = model.state_dict()
    digest = hashlib.sha256(repr([state["net"], state["optimizer"]["state"]]).encode())
    for tensor in [*state["net"].values(), *(part["exp_avg"] for part in state["optimizer"]["state"].values())]:
        digest.update(tensor.numpy().tobytes())
    result = {"default": outcome.metrics["default"], "digest": digest.hexdigest()}
    print(result["digest"])
    proctor.report_final_result(result)
"""


def undisturbed(folder: Path) -> tuple[list[tuple[int, float]], str]:
    """The curve and the hash of the weights of a run without an experiment."""
    script = folder / "undisturbed.py"
    script.write_text(TRAIN)
    printed = subprocess.run(
        [sys.executable, script, folder / "checkpoints"], check=True, capture_output=True, text=True, cwd=folder
    ).stdout
    rows = (folder / "checkpoints" / "run" / "history.jsonl").read_text().splitlines()
    points = [json.loads(row) for row in rows]
    return [(point["step"], point["metrics"]["default"]) for point in points], printed.strip()


def curve(scene: Scene, trial: dict[str, Any]) -> list[tuple[int, float]]:
    return [(point["step"], point["data"]["default"]) for point in scene.manager.client.trial_curve(trial["id"])]


def until_steps(scene: Scene, trial: dict[str, Any], *, jobs: int, steps: int) -> Machine:
    """The machine of the trial, once its attempt of this number runs there and it has reported so many steps."""

    def look() -> bool | None:
        row = scene.manager.client.trial(trial["id"])
        return (row["status"] == "RUNNING" and row["jobs"] == jobs and row["intermediate_count"] >= steps) or None

    scene.manager.until(look, f"{steps} steps, with attempt {jobs}")
    return scene.machine_of(scene.manager.client.trial(trial["id"]))


def test_runs_that_lose_their_machine_or_are_moved_come_to_what_an_undisturbed_one_does_bit_for_bit(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    """One continues from the manager's copy of a checkpoint, the other one from an object store."""
    scene = stage(2, users=(ADMINISTRATOR,))
    points, digest = undisturbed(tmp_path)
    running = {"script": TRAIN, "trialCommand": f"{sys.executable} trial.py", "trainingService": NODE_TIMEOUT}
    with s3_server(tmp_path / "s3", address=scene.network.manager_address) as server:
        losing, [lost] = scene.spread(1, **running)
        first = until_steps(scene, lost, jobs=1, steps=30)
        [other] = [machine for machine in scene.machines if machine is not first]
        scene.manager.client.drain_node(scene.node(other)["id"])
        moving, [moved] = scene.spread(1, **running, **stored_in(server))
        assert until_steps(scene, moved, jobs=1, steps=30) is first
        note = Path(lost["directory"], "jobs", "1.collected.json")
        scene.manager.poll_for(
            lambda: note.exists() and json.loads(note.read_text())["whole"], "a checkpoint to be copied to the manager"
        )
        scene.manager.client.resume_node(scene.node(other)["id"])
        scene.manager.client.drain_node(scene.node(first)["id"])
        scene.manager.command_line("trial", "pause", moved["id"])
        scene.manager.until(
            lambda: scene.manager.client.trial(moved["id"])["status"] == "PAUSED" or None, "the trial to be PAUSED"
        )
        first.power_off()
        scene.manager.command_line("trial", "resume", moved["id"])
        assert until_steps(scene, lost, jobs=2, steps=1) is other
        assert until_steps(scene, moved, jobs=2, steps=60) is other
        scene.release_trials(other)
        for experiment in (losing, moving):
            assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
            [row] = scene.manager.trials(experiment)
            assert curve(scene, row) == points
            assert row["final_data"]["digest"] == digest
        ended, continued = scene.jobs(lost["id"])
        assert ended["end_reason"] == "NODE_LOST"
        assert continued["resumed_from_step"] in (10, 20, 30), continued["start_reason"]
        ended, continued = scene.jobs(moved["id"])
        assert ended["end_reason"] == "PAUSED"
        assert (continued["resumed_from_step"], continued["start_reason"][:15]) == (30, "from checkpoint")
        assert list(other.home().rglob(f"{moving}/**/output/checkpoints/*")) == [], "what was downloaded is removed"
        first.power_on()
        for experiment in (losing, moving):
            scene.remove(experiment)
        scene.until_left()
        assert [path for path in server.system().find(BUCKET) if f"/{moving}/" in path] == []
