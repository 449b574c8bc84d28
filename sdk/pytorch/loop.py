"""The training loop: epochs of batches, and between optimizer windows the boundaries at which a run may be left.

At a boundary, in this order: a validation if one is due, the decision to stop, the checkpoint if one is due or the run
stops, the stop, the question for the next phase of the data. A resumed run goes on right after the checkpoint, so
that nothing before it happens twice and nothing after it is left out.

A boundary lies where an optimizer window ends. In the unit EPOCH the last batch of an epoch always ends a window, and
only there are validations and checkpoints due; a request to stop is also met inside the epoch, at the window's end.

Validations and tests judge the model on data, without gradients, by the same steps.
"""

from typing import Any

import torch

from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.data.loaders import EpochLoader
from proctor.sdk.pytorch.model import overrides
from proctor.sdk.pytorch.options import Phase, StopReason
from proctor.sdk.pytorch.plugins import Override, Plugin
from proctor.sdk.pytorch.reproducibility.kernels import without_benchmark
from proctor.sdk.pytorch.run import Run
from proctor.sdk.pytorch.snapshots import save_checkpoint


class TrainingLoop:
    """The loop of one run in one process; all ranks run it in step."""

    def __init__(self, run: Run) -> None:
        settings = run.settings
        self.run_parts = run
        self.state = run.state
        self._settings = settings
        self._by_epoch = settings.is_by_epoch
        self._window = settings.accumulation_steps
        self._flush = settings.is_by_epoch or settings.flush_at_epoch_end
        self._print = settings.print_frequency or 0
        self._plugins = list(run.plugins)
        self._after_batch = [one for one in self._plugins if overrides(one, Plugin.on_training_batch_end)]
        self._moves = run.plugins.claims(Override.TRAINING_BATCH) is None
        self._wants_stop = False

    def run(self) -> StopReason:
        """Train until a rule stops the run; a checkpoint has been made by then if there is a place for one."""
        if self.state.global_iteration:
            if (reason := self._leave_finished_epoch()) is not None:
                return reason
            self._advance_phase()
        while (reason := self._run_epoch()) is None:
            pass
        return reason

    def _leave_finished_epoch(self) -> "StopReason | None":
        """Go behind an epoch that has no batch left: another trainer's checkpoint, or data that has become shorter."""
        loader = self.run_parts.datamodule.open(Phase.TRAINING, self.state.phase)
        loader.set_epoch(self.state.epoch, self.state.batch)  # epochs of batch samplers may differ in length
        if self.state.batch < loader.epoch_length:
            return None
        self.state.end_epoch()
        return self._pass_boundary(False) if self._by_epoch else None

    def _run_epoch(self) -> "StopReason | None":
        loader = self._enter_epoch()
        length = loader.epoch_length
        for batch in loader:
            is_last = self.state.batch + 1 == length
            self._run_batch(batch, is_last)
            if self.state.window == 0:
                reason = self._pass_boundary(is_last)
                if reason is not None or self._advance_phase():
                    return reason
        return None

    def _enter_epoch(self) -> EpochLoader:
        run, state = self.run_parts, self.state
        loader = run.datamodule.open(Phase.TRAINING, state.phase)
        if state.batch == 0:
            state.begin_epoch()
            run.model.on_training_epoch_start(state.epoch)
        loader.set_epoch(state.epoch, state.batch)
        run.observers.on_epoch_start(state, loader.epoch_length)
        return loader

    def _run_batch(self, batch: Any, is_last: bool) -> None:
        run, state, model = self.run_parts, self.state, self.run_parts.model
        ends_window = state.window + 1 == self._window or (is_last and self._flush)
        state.begin_batch(ends_window, self._by_epoch)
        model.on_training_batch_start(state)
        if self._moves:
            batch = model.batch_to_device(batch, Phase.TRAINING)
        for plugin in self._plugins:
            batch = plugin.process_training_batch(batch, state)
        model.train_step(batch, state)
        counts = self._by_epoch or ends_window
        should_log = self._print > 0 and counts and state.current_iteration % self._print == 0
        model.on_training_batch_end(state, should_log)
        for plugin in self._after_batch:
            plugin.on_training_batch_end(state)
        state.end_batch()
        run.observers.on_batch_end(state)
        if run.wants_stop():
            self._wants_stop = True
        if is_last:
            self._end_epoch()

    def _end_epoch(self) -> None:
        self.run_parts.model.on_training_epoch_end(self.state.epoch)
        self.run_parts.observers.on_epoch_end(self.state)
        self.state.end_epoch()

    def _pass_boundary(self, ends_epoch: bool) -> "StopReason | None":
        run, settings = self.run_parts, self._settings
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
                save_checkpoint(run)
        elif is_due and (self._is_save_due(done) or (is_validated and run.has_new_best())):
            save_checkpoint(run)
        return reason

    def _is_save_due(self, done: int) -> bool:
        frequency, run = self._settings.chkpt_frequency, self.run_parts
        if frequency is None or done % frequency != 0:
            return False
        return bool(run.ranks.broadcast(bool(run.model.should_save_checkpoint())))

    def _decide(self, done: int) -> "StopReason | None":
        """Whether and why to stop; what one rank knows alone, all agree on."""
        settings, ranks = self._settings, self.run_parts.ranks
        if done >= settings.total_steps:
            return StopReason.COMPLETED
        if settings.early_stop_cycles is not None and self.state.early_stop_count >= settings.early_stop_cycles:
            return StopReason.EARLY_STOP
        if not ranks.any(self._wants_stop or trial.should_stop()):
            return None
        return StopReason.MODEL if ranks.any(self._wants_stop) else StopReason.REQUESTED

    def _advance_phase(self) -> bool:
        """Go to the next phase of the data if the model wants to, and say whether the epoch has ended for it."""
        run, state = self.run_parts, self.state
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
    model, is_test = run.model, phase is Phase.TESTING
    cycle = 0 if is_test else run.state.validation_cycles
    loader = run.datamodule.open(phase)
    loader.set_epoch(cycle)
    for plugin in run.plugins:
        plugin.on_evaluation_start(phase)
    model.eval()
    run.observers.on_evaluation_start(phase.value, len(loader))
    with torch.no_grad(), without_benchmark():
        if is_test:
            model.on_testing_start()
        else:
            model.on_validation_start(cycle)
        for step, batch in enumerate(loader):
            if is_test:
                _test(run, batch, step)
            else:
                _validate(run, batch, step)
            run.observers.on_evaluation_batch_end()
        if is_test:
            model.on_testing_end()
        else:
            model.on_validation_end(cycle)
    for plugin in run.plugins:
        plugin.on_evaluation_end(phase)
    run.observers.on_evaluation_end()


def _validate(run: Run, batch: Any, step: int) -> None:
    model = run.model
    model.on_validation_batch_start(step)
    if run.plugins.claims(Override.VALIDATION_BATCH) is None:
        batch = model.batch_to_device(batch, Phase.VALIDATION)
    for plugin in run.plugins:
        batch = plugin.process_validation_batch(batch, step)
    model.valid_step(batch, step)
    model.on_validation_batch_end(step)


def _test(run: Run, batch: Any, step: int) -> None:
    model = run.model
    model.on_testing_batch_start(step)
    if run.plugins.claims(Override.TESTING_BATCH) is None:
        batch = model.batch_to_device(batch, Phase.TESTING)
    for plugin in run.plugins:
        batch = plugin.process_testing_batch(batch, step)
    model.test_step(batch, step)
    model.on_testing_batch_end(step)
