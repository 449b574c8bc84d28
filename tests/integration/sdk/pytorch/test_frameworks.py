"""The callbacks with the frameworks themselves, where they are installed (they are too large to be always there)."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.frameworks import Killed
from fakes.trained_models import DigitsModel, DisturbedDigits, hash_state

from proctor.sdk.pytorch import DataLoaderParams, NotExactWarning, seed_rngs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::proctor.sdk.pytorch.NotExactWarning"),
]


class Network(torch.nn.Module):
    """Raises at a batch; 0 is never."""

    def __init__(self, kill: int) -> None:
        super().__init__()
        model = DigitsModel()
        model.setup()
        self.network = model.net
        self.samples: list[list[int]] = []
        self.kill = kill

    def judge(self, batch: "tuple[Any, Any, Any]") -> Any:
        if self.training:
            self.samples.append(batch[2].tolist())
            if len(self.samples) == self.kill:
                raise Killed
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])


def fit_with_lightning(root: Path, kill: int = 0, *, accumulate: int, workers: int) -> "tuple[str, list[list[int]]]":
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from proctor.sdk.pytorch.lightning import ProctorCallback, ResumableLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Network(kill)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net.judge(batch)

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.net.judge(batch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    seed_rngs(5)
    module, callback = Module(), ProctorCallback(root, every_n_steps=2, metric="loss")
    params = DataLoaderParams(batch_size=4, shuffle=True, num_workers=workers)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=[callback], accelerator="cpu", accumulate_grad_batches=accumulate, **quiet
    )
    trainer.fit(
        module,
        ResumableLoader(DisturbedDigits(), params, seed=5),
        torch.utils.data.DataLoader(DisturbedDigits(8, first=100), batch_size=4),
        ckpt_path=callback.find_checkpoint(),
        weights_only=True,
    )
    return hash_state([module.net.state_dict(), trainer.optimizers[0].state_dict()]), module.net.samples


class PlainDigits:
    """Nothing is drawn when a sample is read: transformers gives the streams back after it has fetched a batch."""

    def __init__(self) -> None:
        self.digits = DisturbedDigits()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> "dict[str, Any]":
        return {"images": self.digits.images[index], "labels": self.digits.labels[index], "index": index}


def fit_with_transformers(root: Path, kill: int = 0, *, accumulate: int, workers: int) -> "tuple[str, list[list[int]]]":
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from proctor.sdk.pytorch.huggingface import ProctorCallback

    class Judged(Network):
        def forward(self, images: Any, labels: Any, index: Any) -> "dict[str, Any]":
            return {"loss": self.judge((images, labels, index))}

    seed_rngs(5)
    network, callback = Judged(kill), ProctorCallback("loss")
    arguments = transformers.TrainingArguments(
        str(root),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        save_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        gradient_accumulation_steps=accumulate,
        dataloader_num_workers=workers,
        seed=5,
    )
    trainer = transformers.Trainer(network, arguments, train_dataset=PlainDigits(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.find_checkpoint(root))
    return hash_state([network.state_dict(), trainer.optimizer.state_dict()]), network.samples


@pytest.mark.parametrize("fit", [fit_with_lightning, fit_with_transformers])
@pytest.mark.parametrize(("kill", "accumulate", "workers"), [(4, 1, 0), (8, 1, 2), (11, 2, 0)])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    tmp_path: Path, fit: Any, kill: int, accumulate: int, workers: int
) -> None:
    whole, all_samples = fit(tmp_path / "whole", accumulate=accumulate, workers=workers)
    with pytest.raises(Killed):
        fit(tmp_path / "cut", kill, accumulate=accumulate, workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        resumed, rest = fit(tmp_path / "cut", accumulate=accumulate, workers=workers)
    assert resumed == whole
    assert 0 < len(rest) < len(all_samples)
    assert rest == all_samples[-len(rest) :]
