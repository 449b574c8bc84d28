"""`python -m benchmarks.trials.training_loops SIDE [--epochs N] [--own-dataset] [--log] [--checkpoints]`

Train the network of `digits_cnn` with one trainer, or with a loop written by hand, on one thread, and print how many
steps it took in a second of processor time. Imports and making the data are not counted; a trainer's start and end are.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.trials import digits_cnn as digits
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from proctor.sdk.files import sync_file, sync_folder

CHECKPOINT_STEPS = 100


@dataclass(frozen=True)
class Work:
    """What is done besides the steps."""

    epochs: int
    data: Dataset[Any]
    log: bool
    """Log the loss of each step to a file."""
    checkpoints: bool
    """Save everything every 100 steps."""
    folder: Path

    @property
    def epoch_steps(self) -> int:
        return -(-len(self.data) // digits.BATCH)


class Images(Dataset[Any]):
    """A dataset as users write them: one sample at a time."""

    def __init__(self) -> None:
        self._images, self._digits = digits.make_dataset().tensors

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._images[index], self._digits[index]


def train_by_hand(work: Work) -> None:
    """A loop as one writes it without a trainer; a checkpoint is copied, and written and synced by a
    thread."""
    torch.manual_seed(digits.SEED)
    network = digits.make_network()
    optimizer = digits.make_optimizer(network)
    network.train()
    step, writer = 0, None
    with (work.folder / "log.jsonl").open("w") as log:
        for epoch in range(work.epochs):
            for images, labels in DataLoader(work.data, batch_size=digits.BATCH, shuffle=True):
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(images), labels)
                loss.backward()
                optimizer.step()
                step += 1
                if work.log:
                    log.write(json.dumps({"step": step, "epoch": epoch, "loss": loss.item()}) + "\n")
                if work.checkpoints and step % CHECKPOINT_STEPS == 0:
                    if writer is not None:
                        writer.join()
                    writer = _save_in_thread(network, optimizer, work.folder, step)
        if writer is not None:
            writer.join()


def _save_in_thread(
    network: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, step: int
) -> threading.Thread:
    state = {"network": copy_tensors(network.state_dict()), "optimizer": copy_tensors(optimizer.state_dict())}

    def write() -> None:
        with (folder / "new.pth").open("wb") as file:
            torch.save(state, file)
            file.flush()
            sync_file(file.fileno())
        (folder / "new.pth").rename(folder / f"step_{step}.pth")
        sync_folder(folder)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def copy_tensors(value: Any) -> Any:
    """Return the same structure with copies of its tensors."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copy_tensors(part) for key, part in value.items()}
    if isinstance(value, list):
        return [copy_tensors(part) for part in value]
    return value


def train_with_proctor(work: Work) -> None:
    """With our trainer."""
    from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, Trainer, TrainUnit

    class Digits(DataModule):
        def setup(self) -> None:
            self.add_train_phase(work.data, DataLoaderParams(batch_size=digits.BATCH, shuffle=True))

    class Network(Model):
        def setup(self) -> None:
            self.network = digits.make_network()
            self.optimizer = digits.make_optimizer(self.network)

        def train_step(self, batch: Any, state: Any) -> None:
            images, labels = batch
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.network(images), labels)
            loss.backward()
            self.optimizer.step()
            if work.log:
                self.log({"loss": loss})

    options: dict[str, Any] = {}
    if work.checkpoints:
        options = {"chkpt_frequency": CHECKPOINT_STEPS, "chkpt_root": work.folder}
    trainer = Trainer(
        "digits",
        train_unit=TrainUnit.ITERATION,
        total_steps=work.epochs * work.epoch_steps,
        use_cpu=True,
        enable_progress_bar=False,
        **options,
    )
    trainer.fit(Network(), Digits())


def train_with_helios(work: Work) -> None:
    """With helios-ml's trainer."""
    from helios import data, model, trainer

    class Digits(data.DataModule):
        def setup(self) -> None:
            self._add_train_phase(work.data, data.DataLoaderParams(batch_size=digits.BATCH, shuffle=True))

    class Network(model.Model):
        def setup(self, for_inference: bool = False) -> None:
            self.network = digits.make_network()
            self.optimizer = digits.make_optimizer(self.network)

        def train_step(self, batch: Any, state: Any) -> None:
            digits.take_step(self.network, self.optimizer, batch)

    made = trainer.Trainer("digits", total_steps=work.epochs, use_cpu=True, print_banner=False)
    if made.fit(Network("digits"), Digits()) is False:
        raise RuntimeError("helios-ml's fit has failed")


def train_with_fabric(work: Work) -> None:
    """With Lightning Fabric: a loop by hand whose network, optimizer and loader it has set up."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(digits.SEED, verbose=False)
    made = digits.make_network()
    network, optimizer = fabric.setup(made, digits.make_optimizer(made))
    loader = fabric.setup_dataloaders(DataLoader(work.data, batch_size=digits.BATCH, shuffle=True))
    network.train()
    for _ in range(work.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            fabric.backward(functional.cross_entropy(network(images), labels))
            optimizer.step()


def train_with_lightning(work: Work) -> None:
    """With Lightning's trainer, without its logger, checkpoints and bar."""
    import lightning

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = digits.make_network()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return digits.make_optimizer(self.network)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            images, labels = batch
            return functional.cross_entropy(self.network(images), labels)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=work.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Network(), DataLoader(work.data, batch_size=digits.BATCH, shuffle=True))


def train_with_transformers(work: Work) -> None:
    """With transformers' trainer, without its reports, checkpoints and bar."""
    import transformers

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = digits.make_network()

        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> "dict[str, torch.Tensor]":
            return {"loss": functional.cross_entropy(self.network(images), labels)}

    def collate(samples: "list[Any]") -> "dict[str, torch.Tensor]":
        images, labels = torch.utils.data.default_collate(samples)
        return {"images": images, "labels": labels}

    network = Network()
    trainer = transformers.Trainer(
        network,
        transformers.TrainingArguments(
            output_dir=str(work.folder),
            num_train_epochs=work.epochs,
            per_device_train_batch_size=digits.BATCH,
            use_cpu=True,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=work.data,
        data_collator=collate,
        optimizers=(digits.make_optimizer(network), None),
    )
    trainer.train()


def _stand_in_for_torchvision() -> None:
    """helios-ml cannot be imported without torchvision, whose transforms are not used here."""
    parent: Any = None
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        stand_in: Any = types.ModuleType(name)
        stand_in.__version__ = "0"
        stand_in.__getattr__ = _any_class
        sys.modules[name] = stand_in
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], stand_in)
        parent = stand_in


def _any_class(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return torch.nn.Module


def _import_side(side: str) -> None:
    """Import what is not to be counted."""
    if side == "helios":
        _stand_in_for_torchvision()
    elif side == "proctor" or side == "fabric" or side == "lightning":
        pass
    elif side == "transformers":
        from transformers import Trainer  # noqa: F401


SIDES: "dict[str, Callable[[Work], None]]" = {
    "hand": train_by_hand,
    "proctor": train_with_proctor,
    "helios": train_with_helios,
    "fabric": train_with_fabric,
    "lightning": train_with_lightning,
    "transformers": train_with_transformers,
}


def main() -> None:
    """Train once without counting, for what is imported and compiled lazily; then again, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trials.training_loops")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--epochs", type=int, default=20)
    for name in ("own-dataset", "log", "checkpoints"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    _import_side(asked.side)
    data: Dataset[Any] = Images() if asked.own_dataset else digits.make_dataset()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        SIDES[asked.side](Work(1, data, asked.log, asked.checkpoints, Path(first)))
        work = Work(asked.epochs, data, asked.log, asked.checkpoints, Path(second))
        began = time.process_time()
        SIDES[asked.side](work)
        print(work.epochs * work.epoch_steps / (time.process_time() - began))


if __name__ == "__main__":
    main()
