"""One fit from its beginning to its end, and the loop in its middle; and the same for a test.

A fit is set up, checked, resumed, trained, finished and torn down. What can be known before the first batch is checked
before it, so that nothing of that kind fails hours later.

The loop runs epochs of batches, and between optimizer windows the boundaries at which a run may be left. At a boundary,
in this order: a validation if one is due, the decision to stop, the checkpoint if one is due or the run stops, the
stop, the question for the next phase of the data. A resumed run continues right after the checkpoint, so that nothing
before it happens twice and nothing after it is left out.

A boundary is where an optimizer window ends. In the unit EPOCH the last batch of an epoch always ends a window, and
only there are validations and checkpoints due; a request to stop is also met inside the epoch, at the window's end.

Validations and tests judge the model on data, without gradients, by the same steps.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from proctor.sdk.pytorch import snapshots, trial
from proctor.sdk.pytorch.callbacks.base import Callback, Callbacks, ExpectedMetric, Override, identify_run, saves_itself
from proctor.sdk.pytorch.callbacks.progress import choose_progress
from proctor.sdk.pytorch.checkpoints.history import History
from proctor.sdk.pytorch.checkpoints.serialization import check_content
from proctor.sdk.pytorch.config import Phase, Settings, StopReason
from proctor.sdk.pytorch.data.loaders import EpochLoader
from proctor.sdk.pytorch.data.streams import StreamLoader
from proctor.sdk.pytorch.distributed.shards import leave_out_split
from proctor.sdk.pytorch.errors import CheckpointWarning, ConfigurationError
from proctor.sdk.pytorch.model import Averages, Model, overrides
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    compare_on_ranks,
    kernel_switches,
    report_gaps,
    without_benchmark,
)
from proctor.sdk.pytorch.reproducibility.seeding import seed_rank, seed_rngs
from proctor.sdk.pytorch.run import (
    LOGGER,
    Outcome,
    Run,
    adopt_parameters,
    announce,
    compare_parameters,
    compare_settings,
    describe_new_parameters,
)
from proctor.sdk.pytorch.setup_options import read_rates
from proctor.sdk.trial import is_in_trial


def fit(run: Run) -> Outcome:
    """Train, from the latest checkpoint if there is one."""
    with opening(run):
        _check_run(run)
        content = resume(run)
        if content is not None and (reason := find_end(run)) is not None:
            run.parts.finish_loading(may_lack=True)
            snapshots.restore_streams(run, content)  # what is drawn after `fit` is what would have been drawn then
            if run.ranks.is_main:
                announce(run, reason)
            return run.finish(reason)
        begin(run, content)
        run.model.on_training_start()
        run.options.note()
        run.parts.finish_loading()
        run.model.train()
        finish_start(run, content)
        reason = TrainingLoop(run).run()
        if reason is not StopReason.REQUESTED:
            run.model.on_training_end()
            run.callbacks.call("on_training_end")
        run.callbacks.call("on_fit_end", reason)
        return run.finish(reason)


def test(run: Run, ckpt_path: "str | os.PathLike[str] | None") -> Outcome:
    """Test a checkpoint, see `Trainer.test`; the random streams are not those of the training, whatever its length."""
    run.history = History(None)  # what a test measures is no part of the training's history
    run.reports = False  # nor of what the tuner judges the training by
    with opening(run, writes=False):
        content = snapshots.find_tested(run, ckpt_path)
        if content is None:
            run.model.load_for_testing()
        else:
            snapshots.restore_model(run, content)
            run.parts.finish_loading(may_lack=True)
            snapshots.restore_training(run, content)
            snapshots.restore_attributes(run, content)
            if run.ranks.is_main:
                _miss_callbacks(run, content)
        seed_rank(run.settings.seed, run.ranks.rank)
        run.model._log = run.log
        evaluate(run, Phase.TESTING)
        return run.finish(None)


def _miss_callbacks(run: Run, content: "dict[str, Any]") -> None:
    """Warn of callbacks that the checkpoint has a state of and this test has not; `EMA` changes what is judged."""
    own = {callback.state_key for callback in run.callbacks.own}
    saved = content.get("plugins") or {}
    if missing := [repr(name) for name, state in saved.items() if state and name not in own]:
        text = (
            f"the tested checkpoint {run.resumed_from} has a state of the callback {', '.join(missing)}, which this "
            "trainer does not have; one that averages weights, as EMA does, was part of what validations judged. Give "
            "Trainer the callbacks that the training had."
        )
        warnings.warn(CheckpointWarning(text), stacklevel=2)


@contextmanager
def opening(run: Run, *, writes: bool = True) -> "Iterator[None]":
    """Set a run up: seed the streams and make everything that it works with; close it, however it ends.

    :param writes: whether it makes checkpoints.
    :raises ConfigurationError: it makes some and has no place for them.
    """
    settings, model = run.settings, run.model
    benchmark = settings.enable_cudnn_benchmark and writes
    with (
        kernel_switches(run.device, deterministic=settings.enable_deterministic, benchmark=benchmark) as run.gaps,
        ExitStack() as stack,  # every part is closed, whatever the others raise
    ):
        stack.callback(setattr, model, "_log", refuse_metrics)
        if run.storage is not None and run.ranks.is_main:
            _close_at_end(stack, run.storage.close)
        _close_at_end(stack, run.callbacks.close)
        stack.callback(run.datamodule.unbind)
        try:
            if writes and settings.chkpt_frequency is not None and run.storage is None:
                raise ConfigurationError("chkpt_frequency needs chkpt_root, the folder of the checkpoints.")
            seed_rngs(settings.seed)
            model.device, model.ranks, model.datamodule, model.queue = run.device, run.ranks, run.datamodule, run.queue
            model.trainer, model.averages, model._log = run.view, Averages(), refuse_metrics
            model._parts = run.parts
            run.callbacks.call("setup", model)
            if writes and run.storage is not None and run.ranks.is_main:
                run.storage.open(anew=not settings.resume)
            run.datamodule.bind(settings.seed, run.ranks)
            _close_at_end(stack, run.datamodule.teardown)
            run.datamodule.setup()
            run.attributes.copied = run.datamodule.get_copied()
            run.attributes.others = {
                **run.datamodule.get_read_with(),
                "the data module": run.datamodule,
                **{f"the callback {one.state_key}": one for one in run.callbacks.own if not saves_itself(one)},
            }
            model.setup()
            yield
        except BaseException as problem:
            run.callbacks.call("on_exception", problem)
            raise


def refuse_metrics(metrics: "Mapping[str, Any]") -> None:
    """What `log` does outside a run's steps: a resumed run would measure those rows again, at no step of its own.

    :raises ConfigurationError: always.
    """
    raise ConfigurationError(
        f"log records metrics of a step of a run, but no run is in progress; found {sorted(metrics)}. A run begins "
        "after setup and load_state_dict and ends with fit: log in on_training_start or a later hook."
    )


def _close_at_end(stack: ExitStack, close: "Callable[[], None]") -> None:
    """Close a part at the end; what that raises after the run has failed is logged and does not hide the failure."""

    def leave(kind: Any, problem: "BaseException | None", trace: Any) -> None:
        try:
            close()
        except Exception as later:
            if problem is None:
                raise
            name = getattr(close, "__qualname__", "closing")
            LOGGER.error("%s failed too: %s: %s", name, type(later).__name__, later, exc_info=later)

    stack.push(leave)


def _check_run(run: Run) -> None:
    """Refuse a training that could not be done as requested, and make every loader it will read (no worker starts).

    :raises ConfigurationError: options, data and model do not fit together, or a sampler cannot be resumed.
    """
    settings, data, model = run.settings, run.datamodule, type(run.model).__name__
    if settings.total_steps == 0:
        raise ConfigurationError("total_steps must be at least 1 to train; found 0. Say how many epochs or iterations.")
    has_rule = type(run.model).should_training_stop is not Model.should_training_stop or is_in_trial()
    claimed = run.callbacks.claims(Override.SHOULD_TRAINING_STOP)
    if settings.total_steps == float("inf") and not (has_rule or settings.early_stop_cycles or claimed):
        raise ConfigurationError(
            "total_steps is endless and nothing would stop the run; set early_stop_cycles, or override "
            "should_training_stop in the model or a plug-in."
        )
    is_judged = settings.best_metric is not None or overrides(run.model, Model.have_metrics_improved)
    if settings.early_stop_cycles is not None and not is_judged:
        raise ConfigurationError(
            "early_stop_cycles counts validations without an improvement, but nothing defines one; set "
            f"best_metric, or override have_metrics_improved in {model}."
        )
    if settings.valid_frequency is not None:
        if not data.has(Phase.VALIDATION):
            raise ConfigurationError(
                f"valid_frequency is {settings.valid_frequency} but there is no data to validate on; call "
                f"set_validation in {type(data).__name__}.setup, or leave valid_frequency out."
            )
        data.open(Phase.VALIDATION)
    is_flushed = settings.accumulation_steps > 1 and (settings.is_by_epoch or settings.flush_at_epoch_end)
    for number in reversed(range(max(1, data.train_phases))):  # the first one last: it is the one in use
        if data.open(Phase.TRAINING, number).epoch_length is None and is_flushed:
            raise ConfigurationError(
                f"accumulation_steps={settings.accumulation_steps} needs to know which batch is the last of an epoch, "
                "which is not known of a stream; set train_unit='iteration' without flush_at_epoch_end."
            )


def resume(run: Run) -> "dict[str, Any] | None":
    """Give everything but the streams back what the latest checkpoint holds, and return its content (collective)."""
    run.options.note()
    if run.storage is not None or run.ranks.world_size > 1:
        run.datamodule.examine(run.ranks)
    run.rates = now = read_rates(run.model)
    content = snapshots.find_checkpoint(run) if run.settings.resume else None
    if content is not None:
        saved = content.get("settings") or {}
        compare_parameters(run, saved)
        with _explaining_misfit(run):
            snapshots.restore_model(run, content)
        snapshots.restore_training(run, content)
        snapshots.restore_attributes(run, content)  # and once more behind on_training_start, which may set them again
        compare_settings(run, saved, now)
    seed_rank(run.settings.seed, run.ranks.rank)
    return content


@contextmanager
def _explaining_misfit(run: Run) -> "Iterator[None]":
    """Say that it is other parameters for which a checkpoint does not fit the model.

    :raises ConfigurationError: it does not, and the run has other parameters.
    """
    try:
        yield
    except Exception as problem:
        if run.parameters_before is None:
            raise
        raise ConfigurationError(
            f"{run.resumed_from} was saved with other parameters ({', '.join(describe_new_parameters(run))}) and does "
            f"not fit the model that these make: {problem}. What a network and its optimizer consist of cannot change "
            "in a clone; add a trial with these parameters instead, which begins anew."
        ) from problem


def find_end(run: Run) -> "StopReason | None":
    """Why a resumed run has nothing left to do, if so. A run that its model stopped asks the model once more."""
    settings, state = run.settings, run.state
    if (state.epoch if settings.is_by_epoch else state.current_iteration) >= settings.total_steps:
        return StopReason.COMPLETED
    if settings.early_stop_cycles is not None and state.early_stop_count >= settings.early_stop_cycles:
        return StopReason.EARLY_STOP
    if state.stop_reason == StopReason.MODEL.value and run.ranks.any(run.wants_stop()):
        return StopReason.MODEL
    return None


def begin(run: Run, content: "dict[str, Any] | None") -> None:
    """Begin to train: report or refuse what is not exact or cannot be saved, cut the history, start the callbacks.

    All ranks call it, and all of them refuse alike (collective).
    """
    settings = run.settings
    run.state.stop_reason = ""
    if content is not None or settings.enable_deterministic or settings.strict_resume:
        report_gaps(run.gaps, ranks=run.ranks, strict=settings.strict_resume)
    if content is not None:
        compare_on_ranks(
            content.get("fingerprint"),
            partial(snapshots.describe_run, run),
            ranks=run.ranks,
            device=run.device,
            strict=settings.strict_resume,
        )
    if run.storage is not None:
        _check_state(run)
    if content is not None and run.ranks.is_main:
        if run.storage is not None:
            run.storage.restore_history(content)
        run.changes += run.datamodule.find_read_again(run.state.phase, run.state.batch)
        announce(run)
    run.model._log = run.log
    run.callbacks.call("on_training_start")


def _check_state(run: Run) -> None:
    """Refuse a model or a callback whose state no checkpoint could hold, as far as there is such a state by now.

    :raises ConfigurationError: the model has parts that nothing would save, or a state holds what could not be loaded
        again safely; the text says where.
    """
    run.parts.check(run.attributes.find_parts())
    found: dict[str, Any] = {}
    with suppress(Exception):  # a state that comes with the training is asked for again at the first save
        found["model"] = leave_out_split(run.model.state_dict())
    with suppress(Exception):
        found.update(leave_out_split(run.callbacks.state_dict()))
    check_content(found, "checkpoint", safe_types=frozenset(run.model.types_for_safe_load()))


def finish_start(run: Run, content: "dict[str, Any] | None") -> None:
    """Note how a start leaves everything, then give a resumed run back what has changed since (collective).

    It comes after the hooks, which a fresh run has behind it at this point too.
    """
    run.parts.note()
    run.attributes.mark()
    if content is not None:
        gaps = snapshots.restore_attributes(run, content)
        report_gaps(gaps, ranks=run.ranks, strict=run.settings.strict_resume)
        adopt_parameters(run)
        snapshots.restore_positions(run, content)
        snapshots.restore_streams(run, content)


def make_callbacks(settings: Settings, own: Callbacks, *, is_main: bool) -> Callbacks:
    """Return the callbacks of a run: the user's, and on the main rank what the options ask for, which is imported then.

    :raises ConfigurationError: an option needs a package that is not installed.
    """
    logs: list[Callback] = []
    if is_main and settings.enable_file_logging and settings.log_path is not None:
        from proctor.sdk.pytorch.callbacks.log_file import FileLog

        logs.append(FileLog(settings.run_name, Path(settings.log_path)))
    if is_main and settings.enable_tensorboard and settings.run_path is not None:
        from proctor.sdk.pytorch.callbacks.tensorboard import TensorBoard

        logs.append(TensorBoard(settings.run_name, Path(settings.run_path)))
    if is_main and (progress := choose_progress(settings, sys.stderr)) is not None:
        logs.append(progress)
    if is_main and settings.best_metric is not None:
        logs.append(ExpectedMetric(settings.best_metric, validates=settings.valid_frequency is not None))
    return Callbacks(own.own, logs, identify_run(settings))


class TrainingLoop:
    """The loop of one run in one process; all ranks run it in step."""

    def __init__(self, run: Run) -> None:
        settings = run.settings
        self._run = run
        self.state = run.state
        self._settings = settings
        self._by_epoch = settings.is_by_epoch
        self._flush = settings.is_by_epoch or settings.flush_at_epoch_end
        self._print = settings.print_frequency or 0
        self._process = run.callbacks.find("process_training_batch")
        self._after_batch = run.callbacks.find("on_training_batch_end")
        self._moves = run.callbacks.claims(Override.TRAINING_BATCH) is None
        self._wants_stop = False

    def run(self) -> StopReason:
        """Train until a rule stops the run; a checkpoint has been made by then if there is a place for one."""
        if self.state.global_iteration:
            if self.state.batch and (reason := self._leave_finished_epoch()) is not None:
                return reason
            self._advance_phase()
        while (reason := self._run_epoch()) is None:
            pass
        return reason

    def _leave_finished_epoch(self) -> "StopReason | None":
        """Go behind an epoch that has no batch left: another trainer's checkpoint, or data that has become shorter."""
        loader = self._run.datamodule.open(Phase.TRAINING, self.state.phase)
        loader.set_epoch(self.state.epoch, self.state.batch)  # epochs of batch samplers may differ in length
        if loader.epoch_length is None or self.state.batch < loader.epoch_length:
            return None
        self.state.end_epoch()
        return self._pass_boundary(False) if self._by_epoch else None

    def _run_epoch(self) -> "StopReason | None":
        reason = None
        loader = self._enter_epoch()
        batches, length = self._run.read(loader), loader.epoch_length
        for batch in batches:
            is_last = self.state.batch + 1 == length
            self._run_batch(batch, is_last)
            if self.state.window == 0:
                reason = self._pass_boundary(is_last)
                if reason is not None or self._advance_phase():
                    return reason
        if length is None:  # which batch would be the last was not known
            self._end_epoch()
            if self._by_epoch and (reason := self._pass_boundary(True)) is None:
                self._advance_phase()
        return reason

    def _enter_epoch(self) -> "EpochLoader | StreamLoader":
        run, state = self._run, self.state
        loader = run.datamodule.open(Phase.TRAINING, state.phase)
        if state.batch == 0:
            state.global_epoch += 1
            run.model.on_training_epoch_start(state.epoch)
        loader.set_epoch(state.epoch, state.batch)
        run.callbacks.call("on_training_epoch_start", state, loader.epoch_length or 0)
        run.attributes.mark_epoch()
        return loader

    def _run_batch(self, batch: Any, is_last: bool) -> None:
        run, state, model = self._run, self.state, self._run.model
        ends_window = state.window + 1 == self._settings.accumulation_steps or (is_last and self._flush)
        state.begin_batch(ends_window, self._by_epoch)
        model.on_training_batch_start(state)
        if self._moves:
            batch = model.batch_to_device(batch, Phase.TRAINING)
        for process in self._process:
            batch = process(batch, state)
        model.train_step(batch, state)
        counts = self._by_epoch or ends_window
        model.on_training_batch_end(state, self._print > 0 and counts and state.current_iteration % self._print == 0)
        for method in self._after_batch:
            method(state)
        state.end_batch()
        if run.wants_stop():
            self._wants_stop = True
        if is_last:
            self._end_epoch()

    def _end_epoch(self) -> None:
        self._run.model.on_training_epoch_end(self.state.epoch)
        self._run.callbacks.call("on_training_epoch_end", self.state)
        self.state.end_epoch()

    def _pass_boundary(self, ends_epoch: bool) -> "StopReason | None":
        run, settings = self._run, self._settings
        done = self.state.epoch if self._by_epoch else self.state.current_iteration
        is_due = ends_epoch or not self._by_epoch
        is_validated = bool(is_due and settings.valid_frequency and done % settings.valid_frequency == 0)
        if is_validated:
            validate(run)
            self._wants_stop = self._wants_stop or run.wants_stop()
        reason = self._decide(done)
        if reason is not None:
            self.state.stop_reason = "" if reason is StopReason.REQUESTED else reason.value
            if run.storage is not None:
                snapshots.save_checkpoint(run)
        elif is_due and (self._is_save_due(done) or (is_validated and run.has_new_best())):
            snapshots.save_checkpoint(run)
        return reason

    def _is_save_due(self, done: int) -> bool:
        frequency, run = self._settings.chkpt_frequency, self._run
        if frequency is None or done % frequency != 0:
            return False
        return bool(run.ranks.broadcast(bool(run.model.should_save_checkpoint())))

    def _decide(self, done: int) -> "StopReason | None":
        """Whether and why to stop; what one rank knows alone, all agree on."""
        settings, ranks = self._settings, self._run.ranks
        if done >= settings.total_steps:
            return StopReason.COMPLETED
        if settings.early_stop_cycles is not None and self.state.early_stop_count >= settings.early_stop_cycles:
            return StopReason.EARLY_STOP
        if not ranks.any(self._wants_stop or trial.should_stop()):
            return None
        return StopReason.MODEL if ranks.any(self._wants_stop) else StopReason.REQUESTED

    def _advance_phase(self) -> bool:
        """Go to the next phase of the data if the model wants to, and say whether the epoch has ended for it."""
        run, state = self._run, self.state
        may_ask = not self._by_epoch or state.batch == 0
        if not may_ask or state.phase + 1 >= run.datamodule.train_phases:
            return False
        if not run.ranks.broadcast(bool(run.model.should_advance_dataset_phase(state))):
            return False
        if state.batch > 0:
            self._end_epoch()
        state.phase += 1
        return True


def validate(run: Run) -> None:
    """Validate, and count the validations in a row without an improvement, as the main rank sees it (collective)."""
    evaluate(run, Phase.VALIDATION)
    run.state.validation_cycles += 1
    run.model.train()
    improved = run.has_improved()
    if improved is not None:
        run.state.early_stop_count = 0 if improved else run.state.early_stop_count + 1


def evaluate(run: Run, phase: Phase) -> None:
    """Run one pass over the data of a phase."""
    model, callbacks, name = run.model, run.callbacks, phase.value  # of which the names of the hooks are made
    is_test = phase is Phase.TESTING
    cycle = 0 if is_test else run.state.validation_cycles
    arguments = () if is_test else (cycle,)
    moves = callbacks.claims(Override(f"{name}_batch")) is None
    loader = run.datamodule.open(phase)
    loader.set_epoch(cycle)
    callbacks.call("on_evaluation_start", phase)
    model.eval()
    with torch.no_grad(), without_benchmark():
        getattr(model, f"on_{name}_start")(*arguments)
        for step, batch in enumerate(run.read(loader)):
            getattr(model, f"on_{name}_batch_start")(step)
            if moves:
                batch = model.batch_to_device(batch, phase)
            for method in callbacks.find(f"process_{name}_batch"):
                batch = method(batch, step)
            (model.test_step if is_test else model.valid_step)(batch, step)
            getattr(model, f"on_{name}_batch_end")(step)
            callbacks.call("on_evaluation_batch_end", step)
        getattr(model, f"on_{name}_end")(*arguments)
    callbacks.call("on_evaluation_end", phase)
