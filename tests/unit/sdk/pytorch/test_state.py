"""The counters, batch by batch, in both units."""

import json
from pathlib import Path

import pytest
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import Trainer, TrainingState, UnreadableCheckpointError

# (global_epoch, current_iteration, global_iteration, optimizer_step_now) in train_step
BY_EPOCH = [
    (1, 1, 1, False),
    (1, 2, 2, True),
    (1, 3, 3, True),  # the epoch ends the window
    (2, 4, 4, False),
    (2, 5, 5, True),
    (2, 6, 6, True),
]
BY_ITERATION = [
    (1, 0, 1, False),
    (1, 1, 2, True),
    (1, 1, 3, False),  # pairs with the first batch of the next epoch
    (2, 2, 4, True),
    (2, 2, 5, False),
    (2, 3, 6, True),
    (3, 3, 7, False),
    (3, 4, 8, True),
]
BY_ITERATION_FLUSHED = [
    (1, 0, 1, False),
    (1, 1, 2, True),
    (1, 2, 3, True),
    (2, 2, 4, False),
    (2, 3, 5, True),
    (2, 4, 6, True),
]


def train(**options: object) -> "tuple[RecordingModel, TrainingState]":
    """Epochs of three batches, windows of two."""
    model = RecordingModel()
    outcome = Trainer("run", accumulation_steps=2, use_cpu=True, **options).fit(model, RangeData(3))  # type: ignore[arg-type]
    return model, outcome.state


def test_T3_by_epoch_both_counters_count_batches_and_the_epoch_is_counted_from_one() -> None:
    model, state = train(train_unit="epoch", total_steps=2)
    assert model.counters == BY_EPOCH
    assert (state.global_epoch, state.current_iteration, state.global_iteration) == (2, 6, 6)


def test_T4_by_iteration_a_step_is_a_window_and_windows_run_on_over_epochs() -> None:
    model, state = train(train_unit="iteration", total_steps=4)
    assert model.counters == BY_ITERATION
    assert (state.global_epoch, state.current_iteration, state.global_iteration) == (3, 4, 8)


def test_T4_windows_end_with_the_epoch_if_that_is_wanted() -> None:
    model, _ = train(train_unit="iteration", total_steps=4, flush_at_epoch_end=True)
    assert model.counters == BY_ITERATION_FLUSHED


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_T5_so_many_steps_are_so_many_windows_of_batches(window: int) -> None:
    model = RecordingModel()
    trainer = Trainer("run", train_unit="iteration", total_steps=4, accumulation_steps=window, use_cpu=True)
    trainer.fit(model, RangeData(3))
    assert len(model.batches) == 4 * window
    assert [place for place, line in enumerate(model.counters, 1) if line[3]] == [window * n for n in range(1, 5)]


def test_T5_by_epoch_windows_change_nothing_about_the_work() -> None:
    model, _ = train(train_unit="epoch", total_steps=4)
    assert len(model.batches) == 12


def test_C7_the_saved_state_holds_counters_and_no_time(tmp_path: Path) -> None:
    states = []
    for name in ("one", "other"):
        trainer = Trainer(name, total_steps=2, chkpt_root=tmp_path, use_cpu=True)
        states.append(trainer.fit(RecordingModel(), RangeData(3)).state.state_dict())
    assert states[0] == states[1]
    assert json.loads(json.dumps(states[0])) == states[0]
    assert states[0].pop("best_score") is None
    assert all(type(value) in (int, str) for value in states[0].values())
    assert not [name for name in states[0] if "time" in name]


def test_a_state_of_another_version_is_refused_by_its_counters() -> None:
    state = TrainingState().state_dict()
    with pytest.raises(UnreadableCheckpointError, match="running_iter"):
        TrainingState().load_state_dict({**state, "running_iter": 1})
