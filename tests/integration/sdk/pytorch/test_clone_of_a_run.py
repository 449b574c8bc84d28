"""A clone of a real trial that trains: it continues from the donor's checkpoint, with its own learning rate."""

from pathlib import Path

import pytest
from fakes.real_manager import real_manager

TRAIN = """
import time
import torch
import proctor
from proctor.sdk.pytorch import DataModule, Model, StopReason, Trainer

parameters = proctor.get_next_parameter()

class Line(Model):
    def setup(self):
        self.net = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=parameters["lr"])
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)

    def train_step(self, batch, state):
        self.log({"default": state.global_iteration, "rate": self.optimizer.param_groups[0]["lr"]})
        (0.001 * self.net(batch)).sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        time.sleep(0.01)

class Ones(DataModule):
    def setup(self):
        self.add_train_phase(torch.ones(20, 1))

outcome = Trainer("run", train_unit="iteration", total_steps=parameters["steps"], chkpt_frequency=10, use_cpu=True).fit(
    Line(), Ones()
)
if outcome.reason is not StopReason.REQUESTED:
    proctor.report_final_result(outcome.metrics["rate"])
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_clone_trains_on_from_the_donors_checkpoint_with_its_own_learning_rate(loaded: str, tmp_path: Path) -> None:
    space = {"lr": {"_type": "uniform", "_value": [0, 1]}, "steps": {"_type": "randint", "_value": [1, 10**9]}}
    with real_manager(tmp_path) as manager:
        experiment = manager.create(TRAIN, interpreter=loaded, searchSpace=space, maxTrialNumber=1, seed=7)
        (donor,) = manager.until(
            lambda: [row for row in manager.trials(experiment) if row["intermediate_count"] > 30], "reports"
        )
        manager.command_line("trial", "pause", donor["id"])
        manager.until(lambda: manager.trials(experiment)[0]["status"] == "PAUSED", "the pause")
        *_, saved = manager.client.checkpoints(donor["id"])
        last = saved["step"] + 3
        manager.command_line("trial", "clone", donor["id"], "--set", "lr=0.02", "--set", f"steps={last}")
        manager.until(lambda: manager.trials(experiment)[1]["status"] == "SUCCEEDED", "the clone")
        clone = manager.trials(experiment)[1]
        points = [(point["step"], point["data"]["rate"]) for point in manager.client.trial_curve(clone["id"])]
        assert points == [
            (step, pytest.approx(0.02 * 0.999 ** (step - 1))) for step in range(saved["step"] + 1, last + 1)
        ]
        said = manager.command_line("trial", "log", clone["id"], "--stderr")
        assert "optimizer: the learning rate begins at 0.02 instead of" in said
        manager.command_line("trial", "resume", donor["id"])  # the donor is as it was
        begins = donor["parameters"]["lr"]
        manager.until(lambda: manager.trials(experiment)[0]["intermediate_count"] > last + 10, "reports")
        curve = [(point["step"], point["data"]["rate"]) for point in manager.client.trial_curve(donor["id"])]
        assert curve == [(step, pytest.approx(begins * 0.999 ** (step - 1))) for step in range(1, len(curve) + 1)]
