"""Lightning runs that are saved, stopped and continued like those of the trainer, as far as Lightning allows.

    loader = ResumableLoader(dataset, DataLoaderParams(batch_size=32, shuffle=True))  # in place of a DataLoader
    callback = ProctorCallback("checkpoints", every_n_steps=100, metric="val_accuracy")
    trainer = Trainer(callbacks=[callback], ...)
    trainer.fit(module, loader, ckpt_path=callback.find_checkpoint(), weights_only=True)

Lightning writes each checkpoint as a file. As in the trainer's own folder, a pointer decides what a run continues from,
and names only what is on the disk. docs/trainer.md says what Lightning does not allow.
"""

import os
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from proctor.sdk import files
from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.pointer import Entry, Pointer, is_whole, read_pointer
from proctor.sdk.pytorch.checkpoints.serialization import load
from proctor.sdk.pytorch.data.module import ResumableLoader, describe_loaders
from proctor.sdk.pytorch.distributed.ranks import get_ranks
from proctor.sdk.pytorch.errors import CheckpointWarning, ConfigurationError, UnreadableCheckpointError
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    Fingerprint,
    compare_on_ranks,
    gather_devices,
    take_fingerprint,
)
from proctor.sdk.pytorch.setup_options import FrameworkOptions

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise ImportError("Lightning is not installed; run pip install 'proctor[lightning]'") from None

__all__ = ["ProctorCallback", "ResumableLoader"]
_KEY = "proctor"
_OPTIONS_KEY = "proctor_options"
_OWN = re.compile(r"step-[0-9]+\.ckpt")


class ProctorCallback(Callback):
    """Saves whole checkpoints, registers them with the trial, reports metrics, and ends when the manager wants it.

    A trial that continues the checkpoint of one with other parameters gives the restored optimizers and schedulers what
    `configure_optimizers` gives otherwise now, such as another learning rate.

    :param folder: for the checkpoints, which are in `folder/run_name`, in a trial in `folder/<trial id>/run_name`.
    :param every_n_steps: how many optimizer steps are between two of them.
    :param run_name: what distinguishes this run from others of the trial; it continues only what bears its name.
    :param metric: the one that becomes the `default` of the reports.
    :param strict_resume: raise `NotExactError` instead of warning when a resume cannot be exact.
    :param keep_last: how many of the newest checkpoints stay.
    :raises ConfigurationError: the name is none for a folder, or a number is less than 1.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        *,
        every_n_steps: int,
        run_name: str = "lightning",
        metric: "str | None" = None,
        strict_resume: bool = False,
        keep_last: int = 2,
    ) -> None:
        if every_n_steps < 1:
            raise ConfigurationError(f"every_n_steps must be at least 1; found {every_n_steps}.")
        if keep_last < 1:
            raise ConfigurationError(f"keep_last must be at least 1, for a run to continue from; found {keep_last}.")
        self._folder = trial.choose_folder(folder, run_name)
        self._run_name = run_name
        self._keep_last = keep_last
        self._every_n_steps = every_n_steps
        self._metric = metric
        self._strict = strict_resume
        self._step = self._saved_step = 0  # the last optimizer step that was seen, and that was saved
        self._is_postponed = self._is_proven = False
        self._left_step = self._reported_step = -1  # where the run stopped for the manager, where metrics were reported
        self._loaded: list[Any] = []
        self._loaded_options: Any = None
        self._options = FrameworkOptions(run_name, trial.read_parameters())

    def find_checkpoint(self) -> "str | None":
        """Return this run's newest whole checkpoint for `ckpt_path`; None if the run is new.

        The one that the trial was handed comes first, unless it is a copy from this folder, which may have a newer one.
        If it is new although the trial was handed something, a `CheckpointWarning` says so.

        :raises UnreadableCheckpointError: there are checkpoints and none is whole, or the pointer is damaged.
        """
        own = read_pointer(self._folder)
        registered = trial.find_registered(self._run_name, is_new=not own)
        places = [(self._folder, entry) for entry in own]
        if registered is not None:
            copies = [(registered, entry) for entry in read_pointer(registered)]
            known = {entry.sha256 for _, entry in copies}
            newer = next((number for number, entry in enumerate(own) if entry.sha256 in known), len(own))
            newer = newer if trial.is_copy_from(registered, self._folder) else 0  # how many of its own come first
            places[newer:newer] = copies
        for folder, entry in places:
            if is_whole(folder, entry):
                return str(folder / entry.name)
        if places:
            raise UnreadableCheckpointError(
                f"none of the {len(places)} checkpoints of run {self._run_name!r} is whole, the last of them in "
                f"{places[-1][0]}; the run would start from its beginning. Bring one back, or use another run_name."
            )
        return None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: "dict[str, Any]") -> None:
        """Add what an exact resume depends on (collective)."""
        devices = gather_devices(get_ranks(), trainer.strategy.root_device)
        if devices is not None:
            checkpoint[_KEY] = _describe(trainer, devices)
            checkpoint[_OPTIONS_KEY] = self._options.to_save()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: "dict[str, Any]") -> None:
        """Keep it until the loaders are there to be compared, too."""
        self._loaded, self._loaded_options = [checkpoint.get(_KEY)], checkpoint.get(_OPTIONS_KEY)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Note what the optimizers were made with, before Lightning restores them."""
        self._options.note(trainer.optimizers, (config.scheduler for config in trainer.lr_scheduler_configs))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from where the run continues; report, or refuse, what keeps it from being exact; train a clone with its
        own options."""
        self._step = self._saved_step = trainer.global_step
        if self._loaded:
            self._options.take_over(self._loaded_options, is_main=trainer.is_global_zero)
        while self._loaded:
            describe = partial(_describe, trainer, is_resumed=True)
            device = trainer.strategy.root_device
            compare_on_ranks(self._loaded.pop(), describe, ranks=get_ranks(), device=device, strict=self._strict)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if it is due; never inside an optimizer window, nor before a validation or the end of an epoch."""
        is_inside_window, self._step = trainer.global_step == self._step, trainer.global_step
        if is_inside_window or trainer.is_last_batch:
            return
        wants_stop = get_ranks().any(trial.should_stop())
        if not (wants_stop or self._step - self._saved_step >= self._every_n_steps):
            return
        self._is_postponed = not self._is_postponed and _validates(trainer, batch_idx)  # once: it may come at each step
        if self._is_postponed:
            return
        self._save(trainer)
        if wants_stop:
            self._left_step, trainer.should_stop = self._step, True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that Lightning has by now, once for each step, but not as the run leaves."""
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        done = {self._left_step, self._reported_step}
        if metrics and trainer.is_global_zero and not trainer.sanity_checking and trainer.global_step not in done:
            self._reported_step = trainer.global_step
            trial.report_values(metrics, default=self._metric, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report those of an epoch without a validation."""
        self.on_validation_end(trainer, pl_module)

    def _save(self, trainer: Any) -> None:
        """Write a checkpoint, and make it the newest one, here and of the trial, once it is on the disk."""
        self._saved_step = self._step
        path = self._folder / f"step-{self._step}.ckpt"
        unfinished = self._folder / f"{files.UNFINISHED_PREFIX}{path.name}"  # the same on all ranks
        self._folder.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(unfinished, weights_only=False)
        if trainer.is_global_zero:
            if not self._is_proven:
                _prove(unfinished)
            self._is_proven = True
            self._commit(unfinished, path)

    def _commit(self, unfinished: Path, path: Path) -> None:
        files.sync_file(unfinished)
        entry = Entry(path.name, files.hash_file(unfinished), unfinished.stat().st_size, epoch=0, iteration=self._step)
        files.put_in_place(unfinished, path)
        files.sync_folder(self._folder)
        others = [other for other in read_pointer(self._folder) if other.name != entry.name]
        kept = [entry, *others][: self._keep_last]
        Pointer(self._run_name, kept).write(self._folder)
        files.remove_unfinished(self._folder, is_only_writer=True)
        names = {other.name for other in kept}
        for other_path in self._folder.glob("step-*.ckpt"):
            if _OWN.fullmatch(other_path.name) and other_path.name not in names:  # superseded, or left by a kill
                files.remove_file(other_path)
        trial.register_links(self._run_name, entry, [path], place=self._folder)


def _prove(path: Path) -> None:
    """Warn, at the first checkpoint of a start, that no run could continue from it as the guide's sample does."""
    try:
        load(path, "meta")
    except UnreadableCheckpointError as problem:
        what = str(problem).partition(". Only plain values")[0]
        text = (
            f"fit(..., weights_only=True) could not continue from this run's checkpoints: {what}. Save plain values "
            "and tensors, or continue with weights_only=False if you trust the checkpoints."
        )
        warnings.warn(CheckpointWarning(text), stacklevel=2)


def _validates(trainer: Any, batch_idx: int) -> bool:
    """Whether Lightning validates right after this batch; what is saved before is not validated after a resume."""
    batch = trainer.fit_loop.total_batch_idx if trainer.check_val_every_n_epoch is None else batch_idx
    return bool(trainer.enable_validation) and (batch + 1) % trainer.val_check_batch == 0


def _describe(trainer: Any, devices: "Sequence[Fingerprint]", *, is_resumed: bool = False) -> Fingerprint:
    loaders = describe_loaders(trainer.train_dataloader)
    plateaus = [each for each in trainer.lr_scheduler_configs if each.reduce_on_plateau and each.interval == "step"]
    return take_fingerprint(
        trainer.strategy.root_device,
        world_size=trainer.world_size,
        devices=devices,
        settings={
            "accumulation steps": trainer.accumulate_grad_batches,
            "precision": str(trainer.precision),
            "position in the data": "lost" if is_resumed and loaders is None else "kept",
            "plateaus by steps": "lost" if is_resumed and plateaus else "kept",
        },
        loaders=loaders,
    )
