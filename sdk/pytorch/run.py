"""One run in one process: what it is made of, how it begins, and how everything is closed however it ends."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch import snapshots, trial
from proctor.sdk.pytorch.averages import Averages
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.history import History
from proctor.sdk.pytorch.checkpoints.pointer import Retention
from proctor.sdk.pytorch.checkpoints.registration import Registrar
from proctor.sdk.pytorch.checkpoints.transfer import deliver, refuse_to_leave_behind
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.determinism.fingerprint import compare_on_ranks
from proctor.sdk.pytorch.determinism.kernels import kernel_switches, tell_gaps
from proctor.sdk.pytorch.determinism.seeding import seed_rank, seed_rngs
from proctor.sdk.pytorch.distributed.processes import HandoverQueue
from proctor.sdk.pytorch.fit import check_run, check_state
from proctor.sdk.pytorch.loop import TrainingLoop, evaluate
from proctor.sdk.pytorch.model import Model, refuse_metrics
from proctor.sdk.pytorch.observers.base import Observers, make_observers
from proctor.sdk.pytorch.options import Phase, Settings, StopReason
from proctor.sdk.pytorch.plugins import Override, Plugins
from proctor.sdk.pytorch.ranks import Ranks
from proctor.sdk.pytorch.state import Record, TrainingState


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
    checkpoint: "Path | None"  # the newest one
    resumed_from: "Path | None" = None


class Run:
    """The parts of a run, as the loop, the snapshots and the evaluation see them; made on all ranks (collective)."""

    def __init__(
        self, settings: Settings, model: Model, *, datamodule: DataModule, plugins: Plugins, place: Place
    ) -> None:
        self.settings = settings
        self.model = model
        self.datamodule = datamodule
        self.plugins = plugins
        self.device = place.device
        self.ranks = place.ranks
        self.queue = place.queue
        self.state = TrainingState()
        self.observers: Observers = make_observers(settings, is_main=place.ranks.is_main)
        self.storage = _make_storage(settings, model, place.ranks)
        keeps = self.storage is not None and place.ranks.is_main
        self.history = self.storage.history if self.storage is not None and keeps else History(None)
        self.metrics: dict[str, float] = {}  # the last value of each metric
        self.gaps: list[str] = []  # what the switches of the kernels leave open
        self.resumed_from: Path | None = None
        self.reports = True  # whether a trial's tuner is to learn of the metrics
        self._has_saved = False
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

    def save(self) -> None:
        """Make a checkpoint of the present position (collective).

        :raises ConfigurationError: the model has parts that no checkpoint would hold.
        """
        if not self._has_saved:  # what the hooks have made since the run began was there for no check
            self.model.check_parts()
            self._has_saved = True
        content = snapshots.take_snapshot(self)
        if content is not None and self.storage is not None:
            metadata = self.model.append_metadata_to_chkpt_name()
            path = self.storage.save(content, metadata=metadata, score=self._score())
            self.observers.on_checkpoint(path, self.state)

    def has_new_best(self) -> bool:
        """Whether the metric that judges the run, as it was just logged, makes this point one to keep (collective)."""
        if self.storage is None or not self.settings.keep_best:
            return False
        score = self._score()
        is_best = self.ranks.is_main and score is not None and self.storage.is_among_best(score)
        return bool(self.ranks.broadcast(is_best))

    def _score(self) -> "float | None":
        name = self.settings.best_metric or ""
        return self.metrics[name] if self._logged.get(name) == self.state.global_iteration else None

    def find_checkpoint(self) -> "dict[str, Any] | None":
        """Read the checkpoint to continue from, the same one on all ranks (collective)."""
        content, path = None, None
        if self.storage is not None and self.ranks.is_main:
            trial.adopt_checkpoint(self.storage)
            if (loaded := self.storage.load_newest(self.device)) is not None:
                content, path = loaded.content, loaded.path
        self.resumed_from = self.ranks.broadcast(path)
        if self.ranks.world_size > 1 and self.storage is not None:
            content = self._share_checkpoint(self.storage, content)
        return content

    def _share_checkpoint(self, storage: CheckpointFolder, content: "dict[str, Any] | None") -> "dict[str, Any] | None":
        """Give the other ranks what the main rank has read, wherever they are."""
        if self.resumed_from is None:
            refuse_to_leave_behind(storage, self.ranks)
            return None
        with deliver(self.resumed_from, self.ranks) as file:
            if content is None:
                content = snapshots.read_snapshot(self.resumed_from, self.model, device=self.device, file=file)
        return content

    def wants_stop(self) -> bool:
        """Whether the model or the plug-in that claimed the question wants the training to stop."""
        claimed = self.plugins.claims(Override.SHOULD_TRAINING_STOP)
        return self.model.should_training_stop() or (claimed is not None and claimed.should_training_stop())

    def finish(self, reason: "StopReason | None") -> Outcome:
        """Wait until everything is stored and say what came of the run, on all ranks alike (collective)."""
        newest = self.resumed_from
        if self.storage is not None and self.ranks.is_main:
            self.storage.wait()
            newest = next((self.storage.path / entry.name for entry in self.storage.entries()), None)
        newest, metrics = self.ranks.broadcast((newest, dict(self.metrics)))
        return Outcome(reason, self.state, metrics, newest, self.resumed_from)


def fit(run: Run) -> Outcome:
    """Train, from the latest checkpoint if there is one."""
    settings = run.settings
    with kernel_switches(
        run.device, deterministic=settings.enable_deterministic, benchmark=settings.enable_cudnn_benchmark
    ) as run.gaps:
        try:
            if run.storage is not None and run.ranks.is_main:
                run.storage.open()
            set_up(run)
            check_run(run)
            content = resume(run)
            if content is not None and (reason := find_end(run)) is not None:
                snapshots.restore_streams(run, content)  # what is drawn after `fit` is what would have been drawn then
                return run.finish(reason)
            return run.finish(_train(run, content))
        finally:
            tear_down(run)


def test(run: Run) -> Outcome:
    """Test the latest checkpoint; the random streams are not those of the training, so its length does not matter."""
    settings = run.settings
    run.history = History(None)  # what a test measures is no part of the training's history
    run.reports = False  # nor of what the tuner judges the training by
    with kernel_switches(run.device, deterministic=settings.enable_deterministic, benchmark=False):
        try:
            set_up(run)
            content = run.find_checkpoint()
            if content is None:
                run.model.load_for_testing()
            else:
                snapshots.restore_model(run, content)
                snapshots.restore_training(run, content)
            seed_rank(settings.random_seed, run.ranks.rank)
            run.model._log = run.log
            evaluate(run, Phase.TESTING)
            return run.finish(None)
        finally:
            tear_down(run)


def find_end(run: Run) -> "StopReason | None":
    """Why a resumed run has nothing left to do, if so. A run that its model stopped asks the model once more."""
    settings, state = run.settings, run.state
    done = state.epoch if settings.is_by_epoch else state.current_iteration
    if done >= settings.total_steps:
        return StopReason.COMPLETED
    if settings.early_stop_cycles is not None and state.early_stop_count >= settings.early_stop_cycles:
        return StopReason.EARLY_STOP
    if state.stop_reason == StopReason.MODEL.value and run.ranks.any(run.wants_stop()):
        return StopReason.MODEL
    return None


def set_up(run: Run) -> None:
    """Seed the streams and make everything that the run works with."""
    run.observers.open()
    seed_rngs(run.settings.random_seed)
    run.model.device, run.model.ranks, run.model.datamodule = run.device, run.ranks, run.datamodule
    run.model.queue, run.model._log, run.model.averages = run.queue, refuse_metrics, Averages()
    for plugin in run.plugins:
        plugin.setup(run.model)
    run.datamodule.bind(run.settings.random_seed, run.ranks)
    run.datamodule.setup()
    run.model.setup()


def resume(run: Run) -> "dict[str, Any] | None":
    """Give everything but the streams back what the latest checkpoint holds, and return its content (collective)."""
    content = run.find_checkpoint() if run.settings.resume else None
    if content is not None:
        snapshots.restore_model(run, content)
        snapshots.restore_training(run, content)
    seed_rank(run.settings.random_seed, run.ranks.rank)
    return content


def _tell_inexact(run: Run, content: "dict[str, Any] | None") -> None:
    """Tell, or refuse, on all ranks alike, what keeps a resumed run, or one that is to be exact, from being so."""
    settings = run.settings
    if content is not None or settings.enable_deterministic or settings.strict_resume:
        tell_gaps(run.gaps, ranks=run.ranks, strict=settings.strict_resume)
    if content is None:
        return
    compare_on_ranks(
        content.get("fingerprint"),
        partial(snapshots.describe_run, run),
        ranks=run.ranks,
        device=run.device,
        strict=settings.strict_resume,
    )


def begin(run: Run, content: "dict[str, Any] | None") -> None:
    """Begin to train: tell or refuse what is not exact or cannot be saved, cut the history, open what looks on.

    All ranks call it (collective).
    """
    run.state.stop_reason = ""
    _tell_inexact(run, content)
    if run.storage is not None:
        check_state(run)
    if content is not None and run.storage is not None and run.ranks.is_main:
        run.storage.restore_history(content)
    run.observers.on_start(run.settings, run.state, run.resumed_from)
    run.model._log = run.log


def _train(run: Run, content: "dict[str, Any] | None") -> StopReason:
    begin(run, content)
    for plugin in run.plugins:
        plugin.on_training_start()
    run.model.on_training_start()
    run.model.train()
    if content is not None:  # after the hooks, which a fresh run's streams have behind them at this point too
        snapshots.restore_streams(run, content)
    reason = TrainingLoop(run).run()
    if reason is not StopReason.REQUESTED:
        run.model.on_training_end()
        for plugin in run.plugins:
            plugin.on_training_end()
    run.observers.on_end(reason.value)
    return reason


def _to_number(name: str, value: Any) -> float:
    numel = getattr(value, "numel", None)
    if numel is not None and numel() != 1:
        raise TypeError(_tell_metric(name, f"a tensor of shape {tuple(value.shape)}"))
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as problem:
        raise TypeError(_tell_metric(name, repr(value))) from problem


def _tell_metric(name: str, found: str) -> str:
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
        registrar=Registrar() if trial.is_in_trial() else None,
    )


def tear_down(run: Run) -> None:
    """Close everything, however the run has ended."""
    with ExitStack() as stack:  # every one is closed, whatever the others raise
        stack.callback(setattr, run.model, "_log", refuse_metrics)
        if run.storage is not None and run.ranks.is_main:
            stack.callback(run.storage.close)
        stack.callback(run.observers.close)
        for plugin in run.plugins:
            stack.callback(plugin.close)
        stack.callback(run.datamodule.unbind)
        stack.callback(run.datamodule.teardown)
