"""Trainings whose tensors are split over the ranks, as FSDP2 does it, or in ways that no checkpoint can hold."""

import os
import signal
import warnings
from typing import Any

import torch
from fakes.recording_model import RangeData
from fakes.trained_models import hash_state
from torch import nn

from proctor.sdk.pytorch import (
    EMA,
    DataLoaderParams,
    DataModule,
    Model,
    NotExactWarning,
    RankFailedError,
    Trainer,
    TrainerError,
    TrainingState,
    unwrap,
    wrap_for_ranks,
)
from proctor.sdk.pytorch.distributed import launch

OPTIONS: "dict[str, Any]" = {"use_cpu": True, "enable_progress_bar": False, "train_unit": "iteration"}


class Clouds(DataModule):
    """Points of three classes."""

    def setup(self) -> None:
        draw = torch.Generator().manual_seed(5)
        points = torch.randn(24, 5, generator=draw)
        data = torch.utils.data.TensorDataset(points, points.argmax(1) % 3)
        self.add_train_phase(data, DataLoaderParams(batch_size=2, shuffle=True))
        self.set_validation(data)


class Mean:
    """A mean of a network's weights that a user has written; its state are tensors like those of the network."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.mean = {name: weight.detach().clone() for name, weight in network.named_parameters()}

    def update(self) -> None:
        for name, weight in self.network.named_parameters():
            self.mean[name].lerp_(weight.detach(), 0.1)

    def state_dict(self) -> "dict[str, Any]":
        return {"mean": self.mean}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])


class SplitModel(Model):
    """A network that is split over the ranks, unevenly, where there are several.

    :param kill: the rank and the batch at which a rank is to die.
    """

    def __init__(self, kill: "tuple[int, int] | None" = None) -> None:
        self._kill = kill

    def setup(self) -> None:
        self.network = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.1), nn.Linear(7, 3))
        if self.ranks.world_size > 1:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.network[0])
            fully_shard(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        self.mean = Mean(self.network)

    def on_training_start(self) -> None:
        self.queue.put(("begun", self.ranks.rank, self.hash_all()))

    def train_step(self, batch: Any, state: TrainingState) -> None:
        if self._kill == (self.ranks.rank, state.global_iteration):
            os.kill(os.getpid(), signal.SIGKILL)
        points, kinds = batch
        loss = nn.functional.cross_entropy(self.network(points), kinds)
        loss.backward()
        self.log({"norm": self.clip_gradients(self.network.parameters(), self.optimizer, 1.0)})
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.mean.update()

    def valid_step(self, batch: Any, step: int) -> None:
        points, kinds = batch
        self.average({"loss": nn.functional.cross_entropy(self.network(points), kinds)})

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log(self.read_averages())

    def on_training_end(self) -> None:
        self.queue.put(("ended", self.ranks.rank, self.hash_all()))

    def hash_all(self) -> str:
        """A hash of all whole tensors, without the module that is tested."""
        states = [self.network.state_dict(), self.mean.state_dict()["mean"]]
        states += self.optimizer.state.values()
        return hash_state([{name: make_whole(value) for name, value in state.items()} for state in states])


class SavingModel(SplitModel):
    """The same with a state of its own making."""

    def state_dict(self) -> "dict[str, Any]":
        return {"all": [self.network.state_dict(), self.optimizer.state_dict(), self.mean.state_dict()]}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        network, optimizer, mean = state["all"]
        self.network.load_state_dict(network)
        self.optimizer.load_state_dict(optimizer)
        self.mean.load_state_dict(mean)


def make_whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on every rank."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train_split(
    root: str, processes: int, total_steps: int, *, kill: "tuple[int, int] | None" = None, saves: bool = False
) -> "dict[str, Any]":
    """Train, and return the hashes at the beginning and the end, by rank, and the checkpoint; or the error."""
    launch.START_METHOD = "fork"
    options = {**OPTIONS, "total_steps": total_steps, "processes": processes, "valid_frequency": 4}
    trainer = Trainer("run", chkpt_frequency=2, chkpt_root=root, **options)
    if not saves:
        trainer.register_plugin(EMA(0.8))
    model = (SavingModel if saves else SplitModel)(None if kill is None else (kill[0], kill[1]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotExactWarning)
            outcome = trainer.fit(model, Clouds())
    except RankFailedError as problem:
        return {"error": str(problem)}
    found: dict[str, Any] = {"begun": {}, "ended": {}, "checkpoint": str(outcome.checkpoint)}
    for when, rank, text in trainer.queue.get_all():
        found[when][rank] = text
    return {when: list(of.values()) if isinstance(of, dict) else of for when, of in found.items()}


class Redundant(Model):
    """An optimizer of which each rank has the state of some parameters."""

    def setup(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch, about itself
            from torch.distributed.optim import ZeroRedundancyOptimizer

        self.network = wrap_for_ranks(nn.Linear(1, 1), self.ranks)
        self.optimizer = ZeroRedundancyOptimizer(self.network.parameters(), torch.optim.Adam, lr=0.1)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        raise AssertionError("the run was to be refused")


class Older(Redundant):
    """The FSDP of before."""

    def setup(self) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        self.network = FullyShardedDataParallel(nn.Linear(1, 1), device_id=torch.device("cpu"))


class Handmade(Model):
    """An optimizer that has the state of a parameter on one rank only, which no class tells."""

    def setup(self) -> None:
        self.network = wrap_for_ranks(nn.Linear(1, 1), self.ranks)
        weight, bias = unwrap(self.network).parameters()
        self.optimizer = torch.optim.Adam([bias if self.ranks.rank else weight])

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.network(batch.float().unsqueeze(1)).sum().backward()
        self.optimizer.step()


class Apart(Model):
    """A network that each rank trains on its own."""

    def setup(self) -> None:
        self.network = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.network(batch.float().unsqueeze(1)).sum().backward()
        self.optimizer.step()


KINDS: "dict[str, type[Model]]" = {"zero": Redundant, "older": Older, "handmade": Handmade, "apart": Apart}


def refuse(root: str, kind: str) -> "list[str]":
    """Train what is to be refused on two ranks, and return the class and the text of the refusal."""
    launch.START_METHOD = "fork"
    options = {**OPTIONS, "processes": 2, "strict_resume": True}
    trainer = Trainer("run", total_steps=4, chkpt_frequency=2, chkpt_root=root, **options)
    try:
        trainer.fit(KINDS[kind](), RangeData(8))
    except TrainerError as problem:
        return [type(problem).__name__, str(problem)]
    return []
