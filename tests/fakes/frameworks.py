"""Stand-ins for Lightning and for the Trainer of transformers: their order of calls, as far as our callbacks see it.

Taken from lightning 2.6.6 and transformers 5.23.0; `tests/integration/sdk/pytorch/test_frameworks.py` does the same
with the real ones.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.attempts import begin_attempt
from fakes.trained_models import DigitsModel, hash_state

from proctor.sdk.checkpoints.saving import find_newest_checkpoint
from proctor.sdk.protocol import JOURNAL_FILE
from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.pointer import Entry
from proctor.sdk.pytorch.distributed.ranks import Ranks


def read_reports(job: Path) -> "list[tuple[int, list[str]]]":
    """The step and the names of each metric that an attempt has reported."""
    journal = job / JOURNAL_FILE
    lines = journal.read_text().splitlines() if journal.exists() else []
    records = [json.loads(line) for line in lines]
    return [(record["step"], sorted(record["value"])) for record in records if record["kind"] == "intermediate"]


class Killed(Exception):
    """As if the process had been killed."""


def cut_before_registration(
    ours: Any, fit: "Callable[[Any, Path], object]", folder: Path, *, job: Path, monkeypatch: pytest.MonkeyPatch
) -> "str | None":
    """Have an attempt killed when a checkpoint later than step 2 is in its folder and not yet registered; returns what
    is registered."""
    register_links = trial.register_links

    def register(run_name: str, entry: Entry, paths: Any, *, place: Path) -> None:
        if entry.iteration > 2:
            raise Killed
        register_links(run_name, entry, paths, place=place)

    begin_attempt(monkeypatch, job)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(trial, "register_links", register)
        fit(ours, folder)
    return find_newest_checkpoint(str(job))


class Callback:
    """The base that both frameworks have."""


@contextmanager
def imported_with(framework: str, base: str, ours: str) -> "Iterator[Any]":
    """Give our module, imported with a stand-in of the framework that has nothing but the base class of callbacks."""
    package = framework.partition(".")[0]
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in before:
        del sys.modules[name]
    stand_in = ModuleType(framework)
    vars(stand_in)[base] = Callback
    sys.modules.update({package: ModuleType(package), framework: stand_in})
    sys.modules.pop(ours, None)
    try:
        yield import_module(ours)
    finally:
        for name in (package, framework, ours):
            sys.modules.pop(name, None)
        sys.modules.update(before)


class Training:
    """A model with its optimizer, the samples it has seen, and a batch at which it is killed (0 is never)."""

    def __init__(self, kill: int = 0, rate: float = 0.01) -> None:
        model = DigitsModel()
        model.ranks = Ranks()
        model.setup()
        self.network, self.optimizer = model.net, model.optimizer
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.samples: list[list[int]] = []
        self.kill = kill

    def backward(self, batch: Any) -> float:
        self.samples.append(batch[2].tolist())
        if len(self.samples) == self.kill:
            raise Killed
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        loss.backward()
        return float(loss.detach())

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> "dict[str, Any]":
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def rates(self) -> "list[float]":
        return [group["lr"] for group in self.optimizer.param_groups]

    def hash(self) -> str:
        return hash_state(self.state_dict())


class LightningTrainer:
    """The fit loop of Lightning with one callback."""

    is_global_zero = True
    sanity_checking = False
    world_size = 1
    precision = "32-true"

    def __init__(self, training: Training, callback: Any, *, epochs: int = 3, accumulate: int = 1) -> None:
        self.training = training
        self.callback = callback
        self.epochs = epochs
        self.accumulate_grad_batches = accumulate
        self.enable_validation = True
        self.check_val_every_n_epoch: int | None = 1
        self.val_check_batch = float("inf")
        self.fit_loop = SimpleNamespace(total_batch_idx=0)
        self.min_steps = 0
        self.lr_scheduler_configs: list[Any] = []
        self.optimizers = [training.optimizer]
        self.strategy = SimpleNamespace(root_device=torch.device("cpu"))
        self.callback_metrics: dict[str, Any] = {}
        self.global_step = 0
        self.should_stop = False
        self.is_last_batch = False
        self.train_dataloader: Any = None
        self._epoch = self._ready = 0

    def fit(self, loader: Any, ckpt_path: "str | None", *, shown_loader: Any = None) -> None:
        """Train; what callbacks see as the loader may be another one."""
        state = torch.load(ckpt_path, weights_only=True) if ckpt_path else None
        if state is not None:
            self.callback.on_load_checkpoint(self, None, state)
        self.callback.on_fit_start(self, None)
        if state is not None:
            self.training.load_state_dict(state["training"])
            self._epoch, self._ready, self.global_step = state["epoch"], state["ready"], state["global_step"]
            loader.load_state_dict(state["loader"])
        self.train_dataloader, self._loader = shown_loader or loader, loader
        torch.rand(3)  # what a framework draws while it starts up
        batches = iter(loader)
        self.callback.on_train_start(self, None)
        while self._epoch < self.epochs and not self._is_leaving():
            if self._ready == 0:
                batches = iter(loader)
            self._fit_epoch(batches, len(loader))
            self.callback.on_validation_end(self, None)
            self.callback.on_train_epoch_end(self, None)
            self._epoch, self._ready = self._epoch + 1, 0

    def _fit_epoch(self, batches: "Iterator[Any]", length: int) -> None:
        while self._ready < length and not self._is_leaving():  # the end of the iterator is not asked for
            batch = next(batches)
            self.fit_loop.total_batch_idx = self._epoch * length + self._ready
            self._ready += 1
            self.is_last_batch = self._ready == length
            self.callback_metrics = {"loss": torch.tensor(self.training.backward(batch))}
            if self._ready % self.accumulate_grad_batches == 0 or self.is_last_batch:
                self.training.step()
                self.global_step += 1
            self.callback.on_train_batch_end(self, None, None, batch, self._ready - 1)
            if self._ready < length and self._ready % self.val_check_batch == 0:
                torch.rand(1)
                self.callback.on_validation_end(self, None)

    def _is_leaving(self) -> bool:
        return self.should_stop and self.global_step >= self.min_steps

    def save_checkpoint(self, path: Path, weights_only: bool) -> None:
        content: dict[str, Any] = {
            "training": self.training.state_dict(),
            "epoch": self._epoch,
            "ready": self._ready,
            "global_step": self.global_step,
            "loader": self._loader.state_dict(),
        }
        self.callback.on_save_checkpoint(self, None, content)
        torch.save(content, path)


class TransformersTrainer:
    """The training loop of transformers with one callback; it saves in place, every two steps, and evaluates epochs."""

    def __init__(self, training: Training, callback: Any, *, seed: int = 5, **arguments: Any) -> None:
        self.training = training
        self.callback = callback
        known: dict[str, Any] = {
            "output_dir": str(callback.folder),
            "device": torch.device("cpu"),
            "world_size": 1,
            "seed": seed,
            "data_seed": None,
            "gradient_accumulation_steps": 1,
            "train_batch_size": 4,
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "dataloader_num_workers": 0,
            "bf16": False,
            "fp16": False,
            "save_strategy": "steps",
            "save_only_model": False,
            "ignore_data_skip": False,
        }
        self.args = SimpleNamespace(**{**known, **arguments})
        self.state = SimpleNamespace(global_step=0, max_steps=0, epoch=0.0, is_world_process_zero=True)

    def train(self, batches: "list[Any]", resume_from_checkpoint: "str | None" = None) -> None:
        if resume_from_checkpoint:
            self._load(Path(resume_from_checkpoint))
        control = SimpleNamespace(should_save=False, should_evaluate=False, should_training_stop=False)
        self.state.max_steps = len(batches)
        parts = {"optimizer": self.training.optimizer, "lr_scheduler": None}
        self.callback.on_train_begin(self.args, self.state, control, **parts)
        for batch in batches[self.state.global_step :]:
            loss = self.training.backward(batch)
            self.training.step()
            self.state.global_step += 1
            self.state.epoch = 2 * self.state.global_step / len(batches)
            control.should_save = self.state.global_step % 2 == 0 and self.args.save_strategy == "steps"
            self.callback.on_step_end(self.args, self.state, control)
            self.callback.on_log(self.args, self.state, control, logs={"loss": loss, "note": "not a number"})
            self._save_if_due(control)
            if control.should_training_stop or self.state.epoch.is_integer():
                control.should_evaluate = True
                control.should_save = self.args.save_strategy == "epoch"
                self.callback.on_epoch_end(self.args, self.state, control)
                if control.should_evaluate:
                    torch.rand(1)
                    self.callback.on_log(self.args, self.state, control, logs={"eval_loss": loss})
                self._save_if_due(control)
            if control.should_training_stop:
                self.callback.on_log(self.args, self.state, control, logs={"train_loss": loss})
                return

    def _save_if_due(self, control: Any) -> None:
        if control.should_save:
            self._save()
            self.callback.on_save(self.args, self.state, control)
            control.should_save = False

    def _save(self) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.training.state_dict(), folder / "training.pt")
        torch.save(torch.get_rng_state(), folder / "rng_state.pth")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))

    def _load(self, folder: Path) -> None:
        self.training.load_state_dict(torch.load(folder / "training.pt", weights_only=True))
        torch.set_rng_state(torch.load(folder / "rng_state.pth", weights_only=True))
        self.state.global_step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
