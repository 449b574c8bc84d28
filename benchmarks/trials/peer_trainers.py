"""`python -m benchmarks.trials.peer_trainers helios|proctor EPOCHS`: train, and print the steps a second."""

import sys
import time
import types
from typing import Any

import torch
from benchmarks.trials import digits_cnn as digits


def train_with_helios(epochs: int) -> float:
    """With helios-ml's trainer."""
    _import_torchvision()
    from helios import data, model, trainer

    class Digits(data.DataModule):
        def setup(self) -> None:
            params = data.DataLoaderParams(batch_size=digits.BATCH, shuffle=True)
            self._add_train_phase(digits.make_dataset(), params)

    class Network(model.Model):
        def setup(self, for_inference: bool = False) -> None:
            self.network = digits.make_network()
            self.optimizer = digits.make_optimizer(self.network)

        def train_step(self, batch: Any, state: Any) -> None:
            digits.take_step(self.network, self.optimizer, batch)

    network = Network("digits")
    began = time.perf_counter()
    done = trainer.Trainer("digits", total_steps=epochs, use_cpu=True, print_banner=False).fit(network, Digits())
    seconds = time.perf_counter() - began
    if done is False:
        raise RuntimeError("helios-ml's fit has failed")
    return epochs * _steps_per_epoch() / seconds


def train_with_proctor(epochs: int) -> float:
    """With our trainer."""
    from benchmarks.trainer import trainer_rate

    return trainer_rate(epochs, total_steps=epochs)


def _steps_per_epoch() -> int:
    return -(-len(digits.make_dataset()) // digits.BATCH)


def _any_class(name: str) -> type:
    if name.startswith("_"):
        raise AttributeError(name)
    return torch.nn.Module


def _import_torchvision() -> None:
    """helios-ml imports torchvision for its transforms, which are not used here; builds of torchvision for GPUs do not
    load beside a torch for CPUs, so a stand-in takes its place then."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        parent: Any = None
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            stand_in: Any = types.ModuleType(name)
            stand_in.__version__ = "0"
            stand_in.__getattr__ = _any_class
            sys.modules[name] = stand_in
            if parent is not None:
                setattr(parent, name.rpartition(".")[2], stand_in)
            parent = stand_in


if __name__ == "__main__":
    side, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    print({"helios": train_with_helios, "proctor": train_with_proctor}[side](count))
