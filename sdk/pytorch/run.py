"""One run in one process: what it is made of, and what its loop, its checkpoints and its end ask of it."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.checkpoints.attributes import TrackedAttributes
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.history import History
from proctor.sdk.pytorch.checkpoints.pointer import Retention
from proctor.sdk.pytorch.checkpoints.registration import Registrar
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.distributed.processes import HandoverQueue
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.model import GIVEN, Model, RunView, overrides
from proctor.sdk.pytorch.observers.base import Observers
from proctor.sdk.pytorch.observers.continuation import Rates
from proctor.sdk.pytorch.options import Settings, StopReason
from proctor.sdk.pytorch.plugins import Override, Plugins
from proctor.sdk.pytorch.state import Record, TrainingState
from proctor.sdk.trial import is_in_trial


@dataclass(frozen=True)
class Place:
    """Where a process of a run works: its device, who the others are, and the way back to the caller."""

    device: Any
    ranks: Ranks
    queue: HandoverQueue = field(default_factory=HandoverQueue)


@dataclass(frozen=True)
class Outcome:
    """What `fit` and `test` return; a failure is never among it, failures raise."""

    reason: "StopReason | None"  # None for a test
    state: TrainingState
    metrics: "dict[str, float]"  # the last value of each metric
    checkpoint: "Path | None"  # the newest one; of a test the one that was tested
    resumed_from: "Path | None" = None


class Run:
    """The parts of a run, as the loop, the snapshots and the evaluation see them; made on all ranks (collective)."""

    def __init__(
        self,
        settings: Settings,
        model: Model,
        *,
        datamodule: DataModule,
        plugins: Plugins,
        place: Place,
        observers: Observers,
    ) -> None:
        self.settings = settings
        self.model = model
        self.datamodule = datamodule
        self.plugins = plugins
        self.device = place.device
        self.ranks = place.ranks
        self.queue = place.queue
        self.state = TrainingState()
        self.observers = observers
        self.storage = _make_storage(settings, model, place.ranks)
        self.history = self.storage.history if self.storage and place.ranks.is_main else History(None)
        self.attributes = TrackedAttributes(model, left_out=(*GIVEN, *model.transient))
        self.metrics: dict[str, float] = {}  # the last value of each metric; always this very object
        self.view = RunView(settings, self.state, self.metrics, self.storage.path if self.storage else None)
        self.gaps: list[str] = []  # what the switches of the kernels leave open
        self.resumed_from: Path | None = None
        self.reports = True  # whether metrics are reported to a trial's tuner
        self.has_saved = False  # since this start
        self.changes: list[str] = []  # what is not as it was before a resume
        self.rates: Rates = {}  # the learning rates that the run began with
        self._logged: dict[str, int] = {}  # the batch at which each metric was logged last

    def log(self, metrics: Any) -> None:
        """Record metrics of the present step, on the main rank."""
        if not self.ranks.is_main:
            return
        state = self.state
        values = {name: _to_number(name, value) for name, value in metrics.items()}
        record = Record(state.current_iteration, state.global_iteration, state.global_epoch, values)
        self.metrics.update(values)
        self._logged.update(dict.fromkeys(values, state.global_iteration))
        self.history.append(values, step=record.step, iteration=record.iteration, epoch=record.epoch)
        self.observers.on_metrics(record)
        if self.reports:
            trial.report_metrics(record, self.settings)

    def has_new_best(self) -> bool:
        """Whether the metric that judges the run, as it was just logged, makes this point one to keep (collective)."""
        if self.storage is None or not self.settings.keep_best:
            return False
        score = self.score()
        is_best = self.ranks.is_main and score is not None and self.storage.is_among_best(score)
        return bool(self.ranks.broadcast(is_best))

    def score(self) -> "float | None":
        """The value of the metric that judges the run, if it was logged at this very batch; on the main rank."""
        name = self.settings.best_metric or ""
        return self.metrics[name] if self._logged.get(name) == self.state.global_iteration else None

    def has_improved(self) -> "bool | None":
        """Whether the last validation was better than those before, as the model says or else the metric that judges
        the run; None if that was not logged with it (collective)."""
        own = bool(self.model.have_metrics_improved())
        if self.settings.best_metric is None or overrides(self.model, Model.have_metrics_improved):
            return bool(self.ranks.broadcast(own))
        score = self.ranks.broadcast(self.score())
        if score is None:
            return None
        best = self.state.best_score
        is_max = self.settings.best_mode == "max"
        is_better = math.isfinite(score) and (best is None or (score > best if is_max else score < best))
        if is_better:
            self.state.best_score = score
        return is_better

    def wants_stop(self) -> bool:
        """Whether the model or the plug-in that claimed the question wants the training to stop."""
        claimed = self.plugins.claims(Override.SHOULD_TRAINING_STOP)
        return self.model.should_training_stop() or (claimed is not None and claimed.should_training_stop())

    def finish(self, reason: "StopReason | None") -> Outcome:
        """Wait until everything is stored and return the outcome, on all ranks alike (collective)."""
        newest = self.resumed_from
        if self.storage is not None and self.ranks.is_main:
            self.storage.wait()
        if self.storage is not None and self.ranks.is_main and reason is not None:
            newest = next((self.storage.path / entry.name for entry in self.storage.entries()), None)
        newest, metrics = self.ranks.broadcast((newest, dict(self.metrics)))
        return Outcome(reason, self.state, metrics, newest, self.resumed_from)


def _to_number(name: str, value: Any) -> float:
    numel = getattr(value, "numel", None)
    if numel is not None and numel() != 1:
        raise TypeError(_metric_problem(name, f"a tensor of shape {tuple(value.shape)}"))
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as problem:
        raise TypeError(_metric_problem(name, repr(value))) from problem


def _metric_problem(name: str, found: str) -> str:
    return f"metric {name!r} must be a number or a tensor of one element; found {found}. Give each value a name."


def _make_storage(settings: Settings, model: Model, ranks: Ranks) -> "CheckpointFolder | None":
    """The main rank decides for all whether there is one; another machine's own place for it may be another."""
    own = trial.choose_root(settings)
    root = ranks.broadcast(own)
    if root is None:
        return None
    return CheckpointFolder(
        own or root,
        settings.run_name,
        retention=Retention(settings.keep_last, settings.keep_best, settings.best_mode),
        in_background=settings.background_writes,
        safe_types=model.types_for_safe_load(),
        registrar=Registrar() if is_in_trial() else None,
    )
