"""Tell two spirals apart: a training that can be killed at any step and ends with the same weights, bit for bit."""

import argparse
import hashlib
import math
import os
import signal
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import proctor
from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, StopReason, Trainer, TrainingState

STEPS = 200


class Spirals(DataModule):
    """2,000 points of two spirals to train on and 500 to judge by."""

    def setup(self) -> None:
        self.add_train_phase(make_points(2000, seed=0), DataLoaderParams(batch_size=64, shuffle=True))
        self.set_validation(make_points(500, seed=1), DataLoaderParams(batch_size=500))


class Classifier(Model):
    """A small network with dropout. At the step `crash_at` it kills its own process; 0 is never."""

    def __init__(self, crash_at: int = 0) -> None:
        self.crash_at = crash_at
        self.accuracy = 0.0

    def setup(self) -> None:
        layers = [nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)]
        self.network = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        if state.global_iteration == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
        points, labels = batch
        self.optimizer.zero_grad()
        functional.cross_entropy(self.network(points + 0.05 * torch.randn_like(points)), labels).backward()
        self.optimizer.step()
        self.schedule.step()

    def valid_step(self, batch: Any, step: int) -> None:
        points, labels = batch
        self.accuracy = (self.network(points).argmax(dim=1) == labels).float().mean().item()

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"accuracy": self.accuracy})


def make_points(count: int, seed: int) -> TensorDataset:
    """Points of two spirals, half of them of each."""
    generator = torch.Generator().manual_seed(seed)
    turn = 3 * math.pi * torch.rand(count, generator=generator).sqrt()
    labels = torch.arange(count) % 2
    angle = turn + math.pi * labels
    return TensorDataset(torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 10, labels)


def hash_weights(network: nn.Module) -> str:
    """The SHA-256 of all weights: one other bit gives another hash."""
    digest = hashlib.sha256()
    for weights in network.state_dict().values():
        digest.update(weights.cpu().numpy().tobytes())
    return digest.hexdigest()


def read_crash() -> int:
    """The step at which to crash: the trial's parameter, at its first attempt; alone, what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash-at", type=int, default=0, help="the step at which the process kills itself")
    if proctor.get_trial_id() == "STANDALONE":
        return int(parser.parse_args().crash_at)
    is_first_attempt = proctor.get_checkpoint() is None
    return int(proctor.get_next_parameter()["crash_at"]) if is_first_attempt else 0


def main() -> None:
    torch.set_num_threads(1)  # two trials at a time share the machine's cores
    trainer = Trainer(
        "spirals",
        train_unit="iteration",
        total_steps=STEPS,
        valid_frequency=50,
        chkpt_frequency=20,
        best_metric="accuracy",  # what the trial reports as `default`
        enable_deterministic=True,
        use_cpu=True,
        chkpt_root="checkpoints" if proctor.get_trial_id() == "STANDALONE" else None,  # a trial has its own folder
    )
    model = Classifier(read_crash())
    outcome = trainer.fit(model, Spirals())
    if outcome.reason is StopReason.REQUESTED:
        return  # the experiment is being stopped; the next attempt continues from the checkpoint
    result = {"default": outcome.metrics["accuracy"], "weights": hash_weights(model.network)}
    proctor.report_final_result(result)
    print(f"accuracy {result['default']:.3f}, continued from {outcome.resumed_from}, weights {result['weights'][:16]}")


if __name__ == "__main__":
    main()
