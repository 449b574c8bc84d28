"""One fit from its beginning to its end: check, set up, resume, train, finish, tear down; and the same for a test.

What can be known before the first batch is checked before it, so that nothing of that kind fails hours later.
"""

import os
import sys
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from proctor.sdk.pytorch import snapshots
from proctor.sdk.pytorch.averages import Averages
from proctor.sdk.pytorch.checkpoints.history import History
from proctor.sdk.pytorch.checkpoints.serialization import check_content
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.loop import TrainingLoop, evaluate
from proctor.sdk.pytorch.model import Model, overrides, refuse_metrics
from proctor.sdk.pytorch.observers.base import ExpectedMetric, Observer, Observers, identify_run
from proctor.sdk.pytorch.observers.continuation import (
    announce,
    find_changes,
    find_saved_rates,
    judges_alike,
    read_rates,
)
from proctor.sdk.pytorch.observers.progress import choose_progress
from proctor.sdk.pytorch.options import Phase, Settings, StopReason
from proctor.sdk.pytorch.plugins import Override
from proctor.sdk.pytorch.reproducibility.fingerprint import compare_on_ranks
from proctor.sdk.pytorch.reproducibility.kernels import kernel_switches, report_gaps
from proctor.sdk.pytorch.reproducibility.seeding import seed_rank, seed_rngs
from proctor.sdk.pytorch.run import Outcome, Run
from proctor.sdk.trial import is_in_trial


def fit(run: Run) -> Outcome:
    """Train, from the latest checkpoint if there is one."""
    settings = run.settings
    with kernel_switches(
        run.device, deterministic=settings.enable_deterministic, benchmark=settings.enable_cudnn_benchmark
    ) as run.gaps:
        try:
            if run.storage is not None and run.ranks.is_main:
                run.storage.open(anew=not run.settings.resume)
            set_up(run)
            check_run(run)
            content = resume(run)
            if content is not None and (reason := find_end(run)) is not None:
                run.model.finish_loading(run.model.get_parts(), may_lack=True)
                snapshots.restore_streams(run, content)  # what is drawn after `fit` is what would have been drawn then
                if run.ranks.is_main:
                    announce(_describe_continuation(run, reason))
                return run.finish(reason)
            return run.finish(_train(run, content))
        finally:
            tear_down(run)


def test(run: Run, ckpt_path: "str | os.PathLike[str] | None") -> Outcome:
    """Test a checkpoint, see `Trainer.test`; the random streams are not those of the training, whatever its length."""
    settings = run.settings
    run.history = History(None)  # what a test measures is no part of the training's history
    run.reports = False  # nor of what the tuner judges the training by
    with kernel_switches(run.device, deterministic=settings.enable_deterministic, benchmark=False):
        try:
            set_up(run)
            content = snapshots.find_tested(run, ckpt_path)
            if content is None:
                run.model.load_for_testing()
            else:
                snapshots.restore_model(run, content)
                run.model.finish_loading(run.model.get_parts(), may_lack=True)
                snapshots.restore_training(run, content)
                snapshots.restore_attributes(run, content)
            seed_rank(settings.random_seed, run.ranks.rank)
            run.model._log = run.log
            evaluate(run, Phase.TESTING)
            return run.finish(None)
        finally:
            tear_down(run)


def set_up(run: Run) -> None:
    """Seed the streams and make everything that the run works with."""
    run.observers.open()
    seed_rngs(run.settings.random_seed)
    run.model.device, run.model.ranks, run.model.datamodule = run.device, run.ranks, run.datamodule
    run.model.queue, run.model._log, run.model.averages = run.queue, refuse_metrics, Averages()
    run.model.trainer = run.view
    for plugin in run.plugins:
        plugin.setup(run.model)
    run.datamodule.bind(run.settings.random_seed, run.ranks)
    run.datamodule.setup()
    run.attributes.data = run.datamodule.get_read_here()
    run.model.reset_parts()
    run.model.setup()


def check_run(run: Run) -> None:
    """Refuse a training that could not be done as requested, and make every loader it will read (no worker starts).

    :raises ConfigurationError: options, data and model do not fit together.
    :raises TypeError: a sampler is none that can be resumed.
    """
    settings = run.settings
    if settings.total_steps == 0:
        raise ConfigurationError("total_steps must be at least 1 to train; found 0. Say how many epochs or iterations.")
    if settings.chkpt_frequency is not None and run.storage is None:
        raise ConfigurationError("chkpt_frequency needs chkpt_root, the folder of the checkpoints.")
    if settings.total_steps == float("inf") and not _has_end(run):
        raise ConfigurationError(
            "total_steps is endless and nothing would stop the run; set early_stop_cycles, or override "
            "should_training_stop in the model or a plug-in."
        )
    is_judged = settings.best_metric is not None or overrides(run.model, Model.have_metrics_improved)
    if settings.early_stop_cycles is not None and not is_judged:
        raise ConfigurationError(
            "early_stop_cycles counts validations without an improvement, and nothing says what that is; set "
            f"best_metric, or override have_metrics_improved in {type(run.model).__name__}."
        )
    data, frequency = run.datamodule, settings.valid_frequency
    if frequency is not None and not data.has(Phase.VALIDATION):
        raise ConfigurationError(
            f"valid_frequency is {frequency} and there is no data to validate on; call set_validation in "
            f"{type(data).__name__}.setup, or leave valid_frequency out."
        )
    if frequency is not None:
        data.open(Phase.VALIDATION)
    for number in reversed(range(max(1, data.train_phases))):  # the first one last: it is the one in use
        data.open(Phase.TRAINING, number)


def _has_end(run: Run) -> bool:
    asks = type(run.model).should_training_stop is not Model.should_training_stop
    claimed = run.plugins.claims(Override.SHOULD_TRAINING_STOP) is not None
    return run.settings.early_stop_cycles is not None or asks or claimed or is_in_trial()


def check_state(run: Run) -> None:
    """Refuse a model or a plug-in whose state no checkpoint could hold, as far as there is such a state by now.

    :raises ConfigurationError: the model has parts that nothing would save.
    :raises TypeError: a state holds what could not be loaded again safely; the text says where.
    """
    run.model.check_parts()
    found: dict[str, Any] = {}
    for name, part in (("model", run.model), ("plugins", run.plugins)):
        with suppress(Exception):  # a state that comes with the training is asked for again at the first save
            found[name] = part.state_dict()
    check_content(found, "checkpoint", safe_types=frozenset(run.model.types_for_safe_load()))


def resume(run: Run) -> "dict[str, Any] | None":
    """Give everything but the streams back what the latest checkpoint holds, and return its content (collective)."""
    run.rates = now = read_rates(run.model)
    content = snapshots.find_checkpoint(run) if run.settings.resume else None
    if content is not None:
        snapshots.restore_model(run, content)
        snapshots.restore_training(run, content)
        snapshots.restore_attributes(run, content)  # and once more behind on_training_start, which may set them anew
        saved = content.get("settings") or {}
        run.rates = {**now, **find_saved_rates(saved, run.model)}
        run.changes = find_changes(saved, run.settings, before=run.rates, now=now)
        if not judges_alike(saved, run.settings):
            run.state.best_score = None
    seed_rank(run.settings.random_seed, run.ranks.rank)
    return content


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


def begin(run: Run, content: "dict[str, Any] | None") -> None:
    """Begin to train: report or refuse what is not exact or cannot be saved, cut the history, start the observers.

    All ranks call it (collective).
    """
    run.state.stop_reason = ""
    _report_inexact(run, content)
    if run.storage is not None:
        check_state(run)
    if content is not None and run.storage is not None and run.ranks.is_main:
        run.storage.restore_history(content)
    if content is not None and run.ranks.is_main:
        announce(_describe_continuation(run))
    run.observers.on_start(run.settings, run.state, run.resumed_from)
    run.model._log = run.log


def _describe_continuation(run: Run, end: "StopReason | None" = None) -> str:
    """The line that says that a run continues, or has ended already."""
    settings, state, checkpoint = run.settings, run.state, run.resumed_from
    place = f"{checkpoint}, epoch {state.global_epoch}, step {state.current_iteration}, batch {state.global_iteration}"
    if end is None:
        text = f"run {settings.run_name} continues from {place}"
    else:
        text = f"run {settings.run_name} has ended already ({end.value}), nothing is done: {place}"
    return "; ".join([text, *run.changes])


def _report_inexact(run: Run, content: "dict[str, Any] | None") -> None:
    """Report, or refuse, on all ranks alike, what keeps a resumed run, or one that is to be exact, from being so."""
    settings = run.settings
    if content is not None or settings.enable_deterministic or settings.strict_resume:
        report_gaps(run.gaps, ranks=run.ranks, strict=settings.strict_resume)
    if content is None:
        return
    compare_on_ranks(
        content.get("fingerprint"),
        partial(snapshots.describe_run, run),
        ranks=run.ranks,
        device=run.device,
        strict=settings.strict_resume,
    )


def finish_start(run: Run, content: "dict[str, Any] | None") -> None:
    """Note how a start leaves everything, then give a resumed run back what has changed since (collective).

    It comes after the hooks, which a fresh run has behind it at this point too.
    """
    run.model.note_parts()
    run.attributes.mark()
    if content is not None:
        gaps = snapshots.restore_attributes(run, content)
        report_gaps(gaps, ranks=run.ranks, strict=run.settings.strict_resume)
        snapshots.restore_streams(run, content)


def _train(run: Run, content: "dict[str, Any] | None") -> StopReason:
    begin(run, content)
    for plugin in run.plugins:
        plugin.on_training_start()
    loaded = run.model.get_parts()
    run.model.on_training_start()
    run.model.finish_loading(loaded)
    run.model.train()
    finish_start(run, content)
    reason = TrainingLoop(run).run()
    if reason is not StopReason.REQUESTED:
        run.model.on_training_end()
        for plugin in run.plugins:
            plugin.on_training_end()
    run.observers.on_end(reason.value)
    return reason


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


def make_observers(settings: Settings, *, is_main: bool) -> Observers:
    """Return the observers that the options ask for; none on the other ranks. What is not asked for is not imported.

    :raises ConfigurationError: an option needs a package that is not installed.
    """
    found: list[Observer] = []
    if is_main and settings.enable_file_logging and settings.log_path is not None:
        from proctor.sdk.pytorch.observers.log_file import FileLog

        found.append(FileLog(settings.run_name, settings.log_path))
    if is_main and settings.enable_tensorboard and settings.run_path is not None:
        from proctor.sdk.pytorch.observers.tensorboard import TensorBoardRun

        found.append(TensorBoardRun(settings.run_name, settings.run_path))
    if is_main and (progress := choose_progress(settings, sys.stderr)) is not None:
        found.append(progress)
    if is_main and settings.best_metric is not None:
        found.append(ExpectedMetric(settings.best_metric, validates=settings.valid_frequency is not None))
    return Observers(found, identify_run(settings))
