"""The counters, batch by batch, in both units."""

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("options", "counters"),
    [
        ({"train_unit": "epoch", "total_steps": 2}, BY_EPOCH),
        ({"train_unit": "iteration", "total_steps": 4}, BY_ITERATION),
        ({"train_unit": "iteration", "total_steps": 4, "flush_at_epoch_end": True}, BY_ITERATION_FLUSHED),
    ],
    ids=["by epoch", "by iteration", "by iteration, flushed at the end of epochs"],
)
def test_T3_T4_counters_count_batches_or_windows_of_two_in_epochs_of_three(
    options: "dict[str, Any]", counters: "list[tuple[int, int, int, bool]]"
) -> None:
    model = RecordingModel()
    state = Trainer("run", accumulation_steps=2, use_cpu=True, **options).fit(model, RangeData(3)).state
    assert model.counters == counters
    assert (state.global_epoch, state.current_iteration, state.global_iteration) == counters[-1][:3]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"train_unit": "epoch"}, "run_epoch_2_iter_8.pth"),
        ({"train_unit": "iteration", "accumulation_steps": 2}, "run_epoch_1_iter_2.pth"),
    ],
)
def test_C3_a_checkpoint_is_named_by_global_epoch_and_current_iteration(
    options: "dict[str, Any]", name: str, tmp_path: Path
) -> None:
    trainer = Trainer("run", total_steps=2, chkpt_root=tmp_path, use_cpu=True, **options)
    assert trainer.fit(RecordingModel(), RangeData(4)).checkpoint == tmp_path / "run" / name


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_T5_so_many_steps_are_so_many_windows_of_batches(window: int) -> None:
    model = RecordingModel()
    trainer = Trainer("run", train_unit="iteration", total_steps=4, accumulation_steps=window, use_cpu=True)
    trainer.fit(model, RangeData(3))
    assert len(model.batches) == 4 * window
    assert [place for place, line in enumerate(model.counters, 1) if line[3]] == [window * n for n in range(1, 5)]


def test_a_state_of_another_version_is_refused_by_its_counters() -> None:
    state = TrainingState().state_dict()
    with pytest.raises(UnreadableCheckpointError, match="running_iter"):
        TrainingState().load_state_dict({**state, "running_iter": 1})
