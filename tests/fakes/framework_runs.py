"""Runs of Lightning and of transformers themselves, in processes that may die: called in incarnations.

There are draws when samples are read (Lightning) and in the dropout, so that a stream or a batch that goes wrong shows.
"""

import contextlib
import importlib
import json
import logging
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
import torch.distributed as dist
import transformers
from fakes.trained_models import DigitsModel, DisturbedDigits, hash_state
from fakes.watches import make_watch

from proctor.sdk.pytorch import CheckpointWarning, DataLoaderParams, NotExactWarning, huggingface, seed_rngs
from proctor.sdk.pytorch import lightning as ours
from proctor.sdk.pytorch.distributed.ranks import Ranks

_LOADED = (transformers.Trainer, transformers.TrainingArguments)  # before the forks: they are imported when named
with contextlib.suppress(ImportError):
    importlib.import_module("s3fs")  # Lightning imports it with its first checkpoint


class Network(torch.nn.Module):
    """Counts what it is trained on, and calls a watch before each batch."""

    def __init__(self, watch: "Callable[[str, int], None]") -> None:
        super().__init__()
        model = DigitsModel()
        model.ranks = Ranks()
        model.setup()
        self.network = model.net
        self.samples: list[list[int]] = []
        self.watch = watch

    def judge(self, batch: "tuple[Any, Any, Any]") -> Any:
        if self.training:
            self.samples.append(batch[2].tolist())
            self.watch("batch", len(self.samples))
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])


def fit_with_lightning(root: str, *, network: Network, recipe: "dict[str, Any]") -> Any:
    """Train, from the newest checkpoint if there is one, and return the optimizer."""

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net.judge(batch)

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("loss", self.net.judge(batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    callback = ours.ProctorCallback(root, every_n_steps=2, run_name="run", metric="loss")
    params = DataLoaderParams(batch_size=4, shuffle=True, num_workers=recipe["workers"])
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    spread = {"strategy": "ddp", "devices": dist.get_world_size()} if dist.is_initialized() else {}
    trainer = lightning.Trainer(
        max_epochs=3,
        callbacks=[callback],
        accelerator="cpu",
        accumulate_grad_batches=recipe["accumulate"],
        val_check_interval=recipe["validate_every"],
        **spread,
        **quiet,
    )
    trainer.fit(
        Module(),
        ours.ResumableLoader(DisturbedDigits(), params, seed=recipe["seed"]),
        torch.utils.data.DataLoader(DisturbedDigits(8, first=100), batch_size=4),
        ckpt_path=callback.find_checkpoint(),
        weights_only=True,
    )
    return trainer.optimizers[0]


class PlainDigits:
    """Nothing is drawn when a sample is read: transformers gives the streams back after it has fetched a batch."""

    def __init__(self, *which: int) -> None:
        self.digits = DisturbedDigits(*which)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> "dict[str, Any]":
        return {"images": self.digits.images[index], "labels": self.digits.labels[index], "index": index}


class Judged(torch.nn.Module):
    """The network in the shape that transformers expects."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.net = network

    def forward(self, images: Any, labels: Any, index: Any) -> "dict[str, Any]":
        loss = self.net.judge((images, labels, index))
        return {"loss": loss, "logits": loss.detach().reshape(1)}


def fit_with_transformers(root: str, *, network: Network, recipe: "dict[str, Any]") -> Any:
    """Train, from the newest checkpoint if there is one, and return the optimizer."""
    callback = huggingface.ProctorCallback(root, run_name="run", metric="eval_loss")
    arguments = transformers.TrainingArguments(
        callback.folder,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        save_steps=2,
        eval_strategy="steps" if isinstance(recipe["validate_every"], int) else "epoch",
        eval_steps=recipe["validate_every"],
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        gradient_accumulation_steps=recipe["accumulate"],
        dataloader_num_workers=recipe["workers"],
        seed=recipe["seed"],
    )
    trainer = transformers.Trainer(
        Judged(network),
        arguments,
        train_dataset=PlainDigits(),
        eval_dataset=PlainDigits(8, 100),
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.find_checkpoint())
    return trainer.optimizer


FITS = {"lightning": fit_with_lightning, "transformers": fit_with_transformers}


def train(framework: str, root: str, *, kill: "tuple[str, int] | None" = None, **recipe: Any) -> "dict[str, Any]":
    """Train to the end, or until the process dies, and return what came of it.

    :param kill: where the run dies; see `make_watch`.
    """
    random.seed()  # an incarnation begins with streams of its own, as a new process does
    calls: list[str] = []
    sys.addaudithook(lambda event, details: _note_call(calls, event, details))
    with _quietly() as reported:
        cell = {"accumulate": 1, "workers": 0, "validate_every": 1.0, "seed": 0, **recipe}
        seed_rngs(cell["seed"])
        network = Network(make_watch(kill=kill))
        optimizer = FITS[framework](root, network=network, recipe=cell)
    ours_only = (NotExactWarning, CheckpointWarning)
    return {
        "killed": False,
        "warned": [str(warning.message) for warning in reported if issubclass(warning.category, ours_only)],
        "called": calls,
        "weights": hash_state(network.state_dict()),
        "optimizer": hash_state(optimizer.state_dict()),
        "samples": network.samples,
    }


def train_on_two(framework: str, root: str, *, threads: "tuple[int, int]" = (1, 2), **how: Any) -> "dict[str, Any]":
    """`train` on two ranks, the second of which may be killed.

    :param threads: how many each has.
    """
    folder = Path(root, f"ranks-{os.getpid()}")
    folder.mkdir(parents=True)
    first, second = (_fork(folder, rank, threads[rank], framework=framework, root=root, how=how) for rank in (0, 1))
    _, status = os.waitpid(second, 0)  # no longer than the server waits for all of this
    if status:
        os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    if os.WIFSIGNALED(status):
        return {"killed": True}
    return {"killed": False, "ranks": [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]}


def _fork(folder: Path, rank: int, threads: int, *, framework: str, root: str, how: "dict[str, Any]") -> int:
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(threads)
            _join(folder, rank)
            found = train(framework, root, **how)
        except BaseException:
            found = {"failure": traceback.format_exc()}
        (folder / str(rank)).write_text(json.dumps(found))
        os._exit("failure" in found)
    return child


def _join(folder: Path, rank: int) -> None:
    """Be what torchrun would make of this process, without a port."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", TORCHELASTIC_RUN_ID="test")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)


def _note_call(calls: "list[str]", event: str, details: "tuple[Any, ...]") -> None:
    """Keep whom this process wants to talk to over a network."""
    if event in {"socket.getaddrinfo", "socket.connect"}:
        target = str(details[1] if event == "socket.connect" else details[0])
        if not any(local in target for local in ("127.0.0.1", "localhost", "::1", "/")):
            calls.append(target)


@contextlib.contextmanager
def _quietly() -> "Iterator[list[warnings.WarningMessage]]":
    """Nothing on standard output, which is the server's; warnings are kept, for those of frameworks are not ours."""
    transformers.logging.set_verbosity_error()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            yield reported
