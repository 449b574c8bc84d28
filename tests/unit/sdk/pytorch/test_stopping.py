"""Why and where runs stop, and that a run that has ended stays as it is."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.attempts import begin_attempt
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.checkpoints.saving import list_checkpoints
from proctor.sdk.protocol import CONTROL_FILE
from proctor.sdk.pytorch import ConfigurationError, Model, Override, Plugin, StopReason, Trainer, TrainingState

BOTH_UNITS = pytest.mark.parametrize("unit", ["epoch", "iteration"])


def make_trainer(root: Path, **options: Any) -> Trainer:
    """A run in its own folder."""
    return Trainer("run", **{"chkpt_root": root, "use_cpu": True, "total_steps": 20, **options})


def saved_state(path: "Path | None") -> "dict[str, Any]":
    """The counters in a checkpoint."""
    assert path is not None
    state: dict[str, Any] = torch.load(path, weights_only=True)["training_state"]
    return state


@BOTH_UNITS
def test_T9_the_run_stops_after_so_many_validations_without_improvement_and_saves_the_count(
    unit: str, tmp_path: Path
) -> None:
    model = RecordingModel(improves=(True, False, True, False, False, True))
    trainer = make_trainer(tmp_path, train_unit=unit, valid_frequency=1, early_stop_cycles=2)
    outcome = trainer.fit(model, RangeData(2))
    assert outcome.reason is StopReason.EARLY_STOP
    assert outcome.state.validation_cycles == 5
    assert saved_state(outcome.checkpoint)["early_stop_count"] == 2
    assert model.hooks[-2:] == ["checkpoint", "on_training_end"]


@BOTH_UNITS
@pytest.mark.parametrize(
    ("improves", "reason"), [((), StopReason.COMPLETED), ((False,), StopReason.EARLY_STOP)], ids=["finished", "early"]
)
def test_C17_T10_a_run_that_has_ended_is_left_as_it_is(
    unit: str, improves: "tuple[bool, ...]", reason: StopReason, tmp_path: Path
) -> None:
    class Logging(RecordingModel):
        def on_validation_end(self, validation_cycle: int) -> None:
            self.log({"score": validation_cycle})

    options = {"train_unit": unit, "total_steps": 3, "chkpt_frequency": 1, "valid_frequency": 1, "early_stop_cycles": 1}
    first = make_trainer(tmp_path, **options).fit(Logging(improves=improves), RangeData(3))
    assert (first.reason, list(first.metrics)) == (reason, ["score"])
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    model = Logging()
    again = make_trainer(tmp_path, **options).fit(model, RangeData(3))
    assert again == replace(first, resumed_from=first.checkpoint)
    assert model.hooks == ["setup", "load_state_dict"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@BOTH_UNITS
def test_a_finished_run_goes_on_when_it_is_given_more_to_do(unit: str, tmp_path: Path) -> None:
    make_trainer(tmp_path, train_unit=unit, total_steps=3).fit(RecordingModel(), RangeData(2, shuffle=True))
    model, whole = RecordingModel(), RecordingModel()
    outcome = make_trainer(tmp_path, train_unit=unit, total_steps=5).fit(model, RangeData(2, shuffle=True))
    make_trainer(tmp_path / "other", train_unit=unit, total_steps=5).fit(whole, RangeData(2, shuffle=True))
    assert outcome.reason is StopReason.COMPLETED
    assert model.batches == whole.batches[-len(model.batches) :]


@BOTH_UNITS
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_T11_a_stop_that_the_model_wants_implies_a_checkpoint(unit: str, stop: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_unit=unit)
    outcome = trainer.fit(RecordingModel(stop_after=stop), RangeData(3))
    assert outcome.reason is StopReason.MODEL
    assert saved_state(outcome.checkpoint)["global_iteration"] == stop


def test_T11_the_question_is_asked_after_a_validation_too(tmp_path: Path) -> None:
    class Satisfied(RecordingModel):
        def should_training_stop(self) -> bool:
            return "on_validation_end" in self.hooks

    outcome = make_trainer(tmp_path, train_unit="iteration", valid_frequency=2).fit(Satisfied(), RangeData(5))
    assert outcome.reason is StopReason.MODEL
    assert outcome.state.current_iteration == 2


def test_T11_a_plug_in_that_has_claimed_the_question_can_stop_the_run(tmp_path: Path) -> None:
    class Stopper(Plugin):
        overrides = frozenset({Override.SHOULD_TRAINING_STOP})

        def should_training_stop(self) -> bool:
            return True

    trainer = make_trainer(tmp_path)
    trainer.register_plugin(Stopper("stopper"))
    outcome = trainer.fit(RecordingModel(), RangeData(5))
    assert outcome.reason is StopReason.MODEL
    assert outcome.state.global_iteration == 1


@BOTH_UNITS
def test_a_run_that_its_model_stopped_is_left_as_it_is_while_the_model_still_wants_that(
    unit: str, tmp_path: Path
) -> None:
    make_trainer(tmp_path, train_unit=unit).fit(RecordingModel(stop_after=4), RangeData(3))
    model = RecordingModel(stop_after=4)
    assert make_trainer(tmp_path, train_unit=unit).fit(model, RangeData(3)).reason is StopReason.MODEL
    assert model.batches == []


@BOTH_UNITS
def test_a_run_that_its_model_stopped_goes_on_if_what_the_model_stops_by_is_in_no_checkpoint(
    unit: str, tmp_path: Path
) -> None:
    class Forgetful(RecordingModel):
        def should_training_stop(self) -> bool:
            return len(self.batches) >= 4

    batches = []
    for _ in range(2):
        model = Forgetful()
        assert make_trainer(tmp_path, train_unit=unit).fit(model, RangeData(3)).reason is StopReason.MODEL
        batches.append(len(model.batches))
    assert batches == [4, 4]


@pytest.mark.parametrize(("unit", "ends"), [("epoch", [3, 5, 8]), ("iteration", [3, 6, 9])])
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 6, 7, 8])
def test_T6_a_stop_waits_for_the_end_of_the_window(unit: str, ends: "list[int]", stop: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_unit=unit, accumulation_steps=3)
    outcome = trainer.fit(RecordingModel(stop_after=stop), RangeData(5))
    assert outcome.state.global_iteration == min(end for end in ends if end >= stop)
    assert saved_state(outcome.checkpoint)["window"] == 0


def test_T7_a_window_is_validated_logged_and_saved_once(tmp_path: Path) -> None:
    saved: list[int] = []

    class Saving(RecordingModel):
        def append_metadata_to_chkpt_name(self) -> str:
            saved.append(self.done)
            return ""

    model = Saving()
    make_trainer(
        tmp_path,
        train_unit="iteration",
        accumulation_steps=3,
        total_steps=4,
        chkpt_frequency=1,
        valid_frequency=2,
        print_frequency=1,
    ).fit(model, RangeData(5))
    assert saved == [3, 6, 9, 12]
    assert model.logged == [3, 6, 9, 12]
    assert model.hooks.count("on_validation_start") == 2


def test_print_frequency_counts_batches_by_epoch() -> None:
    model = RecordingModel()
    Trainer("run", total_steps=2, print_frequency=2, use_cpu=True).fit(model, RangeData(3))
    assert model.logged == [2, 4, 6]


def test_C15_a_model_may_skip_a_checkpoint_that_is_due_but_not_the_one_of_a_stop(tmp_path: Path) -> None:
    class Picky(RecordingModel):
        def should_save_checkpoint(self) -> bool:
            return False

    outcome = make_trainer(tmp_path, total_steps=3, chkpt_frequency=1).fit(Picky(), RangeData(2))
    assert [path.name for path in (tmp_path / "run").glob("*.pth")] == ["run_epoch_3_iter_6.pth"]
    assert outcome.checkpoint is not None


def test_an_endless_run_ends_by_its_rule(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, total_steps=float("inf"), valid_frequency=1, early_stop_cycles=1)
    model = RecordingModel(improves=(True, True, False))
    assert trainer.fit(model, RangeData(2)).state.epoch == 3


@BOTH_UNITS
def test_T2_an_endless_run_in_a_trial_goes_on_until_the_manager_stops_it_and_is_continued(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RecordingModel(stop_after=9)
    make_trainer(tmp_path / "whole", train_unit=unit).fit(whole, RangeData(3, shuffle=True))
    seen: list[list[int]] = []

    class WritesAStopRequest(Model):
        """Has no rule of its own; the manager wants it to stop at a batch."""

        def __init__(self, job: Path, last: int) -> None:
            self.control, self.last = job / CONTROL_FILE, last

        def train_step(self, batch: Any, state: TrainingState) -> None:
            seen.append(batch.tolist())
            if state.global_iteration == self.last:
                self.control.write_text(json.dumps({"stop": True, "reason": "paused"}))

    resume = None
    for attempt, last in enumerate([4, 9]):
        job = tmp_path / f"job-{attempt}"
        begin_attempt(monkeypatch, job, resume=resume)
        trainer = Trainer("run", use_cpu=True, total_steps=float("inf"), train_unit=unit)
        outcome = trainer.fit(WritesAStopRequest(job, last), RangeData(3, shuffle=True))
        assert outcome.reason is StopReason.REQUESTED
        assert outcome.state.global_iteration == last
        resume = list_checkpoints(str(job))[-1]
    assert seen == whole.batches


OPTIONS: "dict[str, Any]" = {"use_cpu": True, "valid_frequency": 1, "early_stop_cycles": 2, "best_metric": "score"}


class Scored(Model):
    """Logs a score after each validation.

    :param scores: None logs none.
    """

    def __init__(self, *scores: "float | None") -> None:
        self.scores = scores

    def train_step(self, batch: Any, state: TrainingState) -> None:
        pass

    def on_validation_end(self, validation_cycle: int) -> None:
        score = self.scores[validation_cycle]
        self.log({"loss": 1.0} if score is None else {"score": score})


class Improving(Scored):
    def have_metrics_improved(self) -> bool:
        return True


@pytest.mark.parametrize("unit", ["epoch", "iteration"])
@pytest.mark.parametrize(
    ("mode", "scores", "epochs"),
    [
        ("max", (1.0, 2.0, 2.0, 1.0, 9.0), 4),
        ("min", (2.0, 1.0, 0.5, 1.0, 0.5, 0.1), 5),
        ("max", (math.nan, 1.0, math.nan, math.inf, 9.0), 4),
        ("min", (math.nan, -math.inf, 0.0), 2),
    ],
)
def test_T9_best_metric_judges_where_the_model_does_not(
    unit: str, mode: str, scores: "tuple[float, ...]", epochs: int
) -> None:
    trainer = Trainer("run", total_steps=len(scores) + 9, train_unit=unit, best_mode=mode, **OPTIONS)
    outcome = trainer.fit(Scored(*scores), RangeData(1))
    assert outcome.reason is StopReason.EARLY_STOP
    assert outcome.state.validation_cycles == epochs
    assert outcome.state.early_stop_count == 2


def test_T9_a_resumed_run_knows_the_best_score_so_far(tmp_path: Path) -> None:
    scores = (5.0, 1.0, 2.0, 9.0)
    options = {**OPTIONS, "chkpt_root": tmp_path}
    first = Trainer("run", total_steps=2, **options).fit(Scored(*scores), RangeData(1))
    assert (first.reason, first.state.best_score) == (StopReason.COMPLETED, 5.0)
    second = Trainer("run", total_steps=9, **options).fit(Scored(*scores), RangeData(1))
    assert second.reason is StopReason.EARLY_STOP
    assert (second.state.epoch, second.state.best_score) == (3, 5.0)


def test_T9_a_validation_without_the_metric_does_not_count() -> None:
    outcome = Trainer("run", total_steps=6, **OPTIONS).fit(Scored(1.0, None, 0.0, None, 0.0), RangeData(1))
    assert outcome.reason is StopReason.EARLY_STOP
    assert outcome.state.validation_cycles == 5


def test_T9_a_model_that_judges_by_itself_is_asked_alone() -> None:
    outcome = Trainer("run", total_steps=4, **OPTIONS).fit(Improving(3.0, 2.0, 1.0, 0.0), RangeData(1))
    assert outcome.reason is StopReason.COMPLETED


def test_T9_early_stopping_that_nothing_judges_is_refused() -> None:
    options = {**OPTIONS, "best_metric": None}
    with pytest.raises(ConfigurationError, match=r"early_stop_cycles .* best_metric, or override .* in Scored"):
        Trainer("run", total_steps=4, **options).fit(Scored(), RangeData(1))
    Trainer("run", total_steps=1, **options).fit(Improving(1.0), RangeData(1))


def test_T9_a_state_of_before_there_was_a_best_score_is_read() -> None:
    state = TrainingState(epoch=3)
    older = {name: value for name, value in state.state_dict().items() if name != "best_score"}
    found = TrainingState(best_score=1.0)
    found.load_state_dict(older)
    assert found == state
