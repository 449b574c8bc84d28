"""Lightning runs that are saved, stopped and continued like those of the trainer, as far as Lightning allows.

    loader = ResumableLoader(dataset, DataLoaderParams(batch_size=32, shuffle=True))  # in place of a DataLoader
    callback = ProctorCallback("checkpoints", every_n_steps=100, metric="val_accuracy")
    trainer = Trainer(callbacks=[callback], ...)
    trainer.fit(module, loader, ckpt_path=callback.find_checkpoint(), weights_only=True)

docs/trainer.md says what Lightning does not allow.
"""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.distributed import get_ranks
from proctor.sdk.pytorch.files import sync_folder
from proctor.sdk.pytorch.fingerprint import compare_fingerprints, take_fingerprint
from proctor.sdk.pytorch.stateful import ResumableLoader
from proctor.sdk.pytorch.trial import is_in_trial

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise ImportError("Lightning is not installed; run pip install 'proctor[lightning]'") from None

__all__ = ["ProctorCallback", "ResumableLoader"]

_REGISTERED = "step-0.ckpt"  # the name in the trial's own checkpoints, which hold one each
_KEY = "proctor"


class ProctorCallback(Callback):
    """Saves whole checkpoints, registers them with the trial, reports metrics, and ends when the manager wants it.

    :param folder: for the checkpoints; inside a trial, the one in it that is called after the trial.
    :param every_n_steps: how many optimizer steps lie between two of them.
    :param metric: the one that becomes the `default` of the reports.
    :param strict_resume: raise `NotExactError` instead of warning when a resume cannot be exact.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        *,
        every_n_steps: int,
        metric: "str | None" = None,
        strict_resume: bool = False,
        keep_last: int = 2,
    ) -> None:
        self.folder = Path(folder) / (sdk.get_trial_id() if is_in_trial() else "")
        self._every_n_steps = every_n_steps
        self._metric = metric
        self._strict_resume = strict_resume
        self._keep_last = keep_last
        self._step = 0  # the last optimizer step that was seen
        self._saved_step = 0
        self._is_leaving = False
        self._reported_step = -1
        self._loaded: list[Any] = []

    def find_checkpoint(self) -> "str | None":
        """Return the newest whole checkpoint for `ckpt_path`: this trial's own or its predecessor's, else None."""
        if is_in_trial() and (registered := sdk.get_checkpoint()) is not None:
            return f"{registered}/{_REGISTERED}"
        return next((str(path) for path in reversed(self._list())), None)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: "dict[str, Any]") -> None:
        """Add what an exact resume depends on."""
        checkpoint[_KEY] = _describe(trainer)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: "dict[str, Any]") -> None:
        """Keep it until the loaders are there to be compared, too."""
        self._loaded = [checkpoint.get(_KEY)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from where the run goes on; tell, or refuse, what keeps it from being exact."""
        self._step = self._saved_step = trainer.global_step
        while self._loaded:
            compare_fingerprints(self._loaded.pop(), _describe(trainer), strict=self._strict_resume)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if it is due; never inside an optimizer window, nor before the hooks that end an epoch have run."""
        is_inside_window, self._step = trainer.global_step == self._step, trainer.global_step
        if is_inside_window or trainer.is_last_batch:
            return
        wants_stop = get_ranks().any(is_in_trial() and sdk.should_stop())
        if wants_stop or self._step - self._saved_step >= self._every_n_steps:
            self._save(trainer)
        if wants_stop:
            self._is_leaving = trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that Lightning has by now."""
        if not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report those of an epoch without a validation."""
        self._report(trainer)

    def _report(self, trainer: Any) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if not metrics or self._is_leaving or not trainer.is_global_zero or trainer.global_step == self._reported_step:
            return
        self._reported_step = trainer.global_step
        if self._metric in metrics:
            metrics["default"] = metrics[self._metric]
        sdk.report(metrics, step=trainer.global_step)

    def _save(self, trainer: Any) -> None:
        path = self.folder / f"step-{trainer.global_step}.ckpt"
        unfinished = self.folder / f".{path.name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(unfinished, weights_only=False)
        self._saved_step = trainer.global_step
        if not trainer.is_global_zero:
            return
        with open(unfinished, "rb") as written:
            os.fsync(written.fileno())
        os.replace(unfinished, path)
        sync_folder(self.folder)
        if is_in_trial():
            with TemporaryDirectory(dir=self.folder) as exported:
                os.link(path, f"{exported}/{_REGISTERED}")
                sdk.save_checkpoint(exported, step=trainer.global_step)
        for old in self._list()[: -self._keep_last]:
            with suppress(FileNotFoundError):
                old.unlink()

    def _list(self) -> "list[Path]":
        return sorted(self.folder.glob("step-*.ckpt"), key=lambda path: int(path.stem.removeprefix("step-")))


def _describe(trainer: Any) -> "dict[str, Any]":
    loader = trainer.train_dataloader
    return take_fingerprint(
        trainer.strategy.root_device,
        world_size=trainer.world_size,
        settings={"accumulation steps": trainer.accumulate_grad_batches},
        loaders=loader.describe() if isinstance(loader, ResumableLoader) else {},
    )
