"""Stand-ins for Lightning and for the Trainer of transformers: their order of calls, as far as our callbacks see it.

Taken from lightning 2.6.6 and transformers 5.23.0; `tests/integration/sdk/pytorch/test_frameworks.py` does the same
with the real ones. `Lightning` and `Transformers` are what the tests of both frameworks need to know of each.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.trained_models import DigitsModel, DisturbedDigits, hash_state

from proctor.sdk.protocol import JOURNAL_FILE
from proctor.sdk.pytorch import DataLoaderParams, DataModule, seed_rngs
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.distributed.ranks import Ranks


def read_reports(job: Path) -> "list[tuple[int, list[str]]]":
    """The step and the names of each metric that an attempt has reported."""
    journal = job / JOURNAL_FILE
    lines = journal.read_text().splitlines() if journal.exists() else []
    records = [json.loads(line) for line in lines]
    return [(record["step"], sorted(record["value"])) for record in records if record["kind"] == "intermediate"]


class Killed(Exception):
    """As if the process had been killed."""


class Callback:
    """The base that both frameworks have."""


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
        (folder / "folder").mkdir(parents=True, exist_ok=True)  # some write folders into it
        torch.save(self.training.state_dict(), folder / "training.pt")
        torch.save(torch.get_rng_state(), folder / "rng_state.pth")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))

    def _load(self, folder: Path) -> None:
        self.training.load_state_dict(torch.load(folder / "training.pt", weights_only=True))
        torch.set_rng_state(torch.load(folder / "rng_state.pth", weights_only=True))
        self.state.global_step = json.loads((folder / "trainer_state.json").read_text())["global_step"]


class Framework(ABC):
    """Runs of one framework's stand-in, and what each of them comes to."""

    name: str  # what a run is called by itself
    module: str  # ours
    library: str  # where its class of callbacks is, by the name `base`
    base: str
    absent: "tuple[str, ...]"  # what cannot be imported where it is not installed
    batches: int  # how many a run trains on
    last_saved: int  # behind this batch a run saves last
    kills: "tuple[tuple[dict[str, Any], dict[int, int]], ...]"  # by options: where a run is killed, where it had saved
    stopped_at: "tuple[int, int]"  # after so many reports a trial is asked to stop; it leaves behind this batch
    reports: "tuple[tuple[int, list[str]], ...]"  # of the trial that leaves, and then one of its next attempt's
    saved: "tuple[int, ...]"  # the steps that the trial that leaves has registered
    changed: "tuple[str, Any]"  # an option with which a resume is not exact, and how that is reported
    difference: str
    forgetful: "tuple[str, Any]"  # an option with which a resumed run forgets where in the data it is

    @contextmanager
    def imported(self) -> "Iterator[Framework]":
        """Import our module with a stand-in of the framework that has nothing but the base class of callbacks."""
        package = self.library.partition(".")[0]
        before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
        for name in before:
            del sys.modules[name]
        stand_in = ModuleType(self.library)
        vars(stand_in)[self.base] = Callback
        sys.modules.update({package: ModuleType(package), self.library: stand_in})
        sys.modules.pop(self.module, None)
        try:
            self.ours: Any = import_module(self.module)
            yield self
        finally:
            for name in (package, self.library, self.module):
                sys.modules.pop(name, None)
            sys.modules.update(before)

    def fit(
        self,
        root: Path,
        *,
        run_name: "str | None" = None,
        kill: int = 0,
        seed: int = 5,
        rate: float = 0.01,
        **options: Any,
    ) -> Training:
        """Train, from the newest checkpoint if there is one.

        :param options: `strict` about what is not exact, `anew` without a checkpoint, and those of `_train`.
        """
        seed_rngs(seed)
        training = Training(kill, rate)
        self._train(root, training, run_name=run_name or self.name, seed=seed, **options)
        return training

    def cut(self, root: Path, *, kill: int = 4, **options: Any) -> None:
        """Have a run killed; at its fourth batch, it has saved behind the second one."""
        with pytest.raises(Killed):
            self.fit(root, kill=kill, **options)

    @abstractmethod
    def _train(self, root: Path, training: Training, *, run_name: str, seed: int, **options: Any) -> None: ...


class Lightning(Framework):
    """Epochs of six batches, saved every two steps, but not behind the last batch of an epoch."""

    name, module = "lightning", "proctor.sdk.pytorch.lightning"
    library, base, absent = "lightning.pytorch", "Callback", ("lightning", "lightning.pytorch", "pytorch_lightning")
    batches, last_saved = 18, 17
    kills = (
        ({}, {4: 2, 6: 4, 8: 7, 15: 13}),
        ({"accumulate": 2}, {8: 4}),
        ({"trainer": {"val_check_batch": 2}}, {6: 5}),
    )
    stopped_at, saved = (1, 7), (2, 4, 7)
    reports = ((6, ["default", "loss"]), (12, ["default", "loss"]))
    changed, difference = ("batch_size", 2), "batch size of training 0 was 4, is 2"
    forgetful = ("shown_loader", object())

    def _train(
        self,
        root: Path,
        training: Training,
        *,
        run_name: str,
        seed: int,
        strict: bool = False,
        anew: bool = False,
        accumulate: int = 1,
        batch_size: int = 4,
        trainer: "dict[str, Any] | None" = None,
        shown_loader: Any = None,
        **options: Any,
    ) -> None:
        named: Any = {"run_name": run_name, "strict_resume": strict, "metric": "loss", "every_n_steps": 2, **options}
        callback = self.ours.ProctorCallback(root, **named)
        params = DataLoaderParams(batch_size=batch_size, shuffle=True)
        loader = self.ours.ResumableLoader(DisturbedDigits(), params, seed=seed)
        lightning = LightningTrainer(training, callback, accumulate=accumulate)
        vars(lightning).update(trainer or {})
        lightning.fit(loader, None if anew else callback.find_checkpoint(), shown_loader=shown_loader)


class Transformers(Framework):
    """Two epochs of six batches, saved every two steps."""

    name, module = "transformers", "proctor.sdk.pytorch.huggingface"
    library, base, absent = "transformers", "TrainerCallback", ("transformers",)
    batches, last_saved = 12, 12
    kills = (({}, {1: 0, 4: 2, 7: 6, 8: 6, 9: 8}),)
    stopped_at, saved = (2, 3), (2, 3)
    reports = (*((step, ["default", "loss"]) for step in (1, 2, 3)), (6, ["eval_loss"]))
    changed, difference = ("gradient_accumulation_steps", 2), "accumulation steps was 1, is 2"
    forgetful = ("ignore_data_skip", True)

    def _train(
        self,
        root: Path,
        training: Training,
        *,
        run_name: str,
        seed: int,
        strict: bool = False,
        anew: bool = False,
        **arguments: Any,
    ) -> None:
        data = DataModule()
        data.bind(seed, Ranks())
        data.add_train_phase(DisturbedDigits(), DataLoaderParams(batch_size=4))
        batches = list(data.open(Phase.TRAINING)) * 2
        callback = self.ours.ProctorCallback(root, run_name=run_name, metric="loss", strict_resume=strict)
        (rate,) = training.rates()
        trainer = TransformersTrainer(training, callback, **{"seed": seed, "learning_rate": rate, **arguments})
        trainer.train(batches, None if anew else callback.find_checkpoint())
