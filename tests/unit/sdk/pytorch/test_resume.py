"""A run that is left at any batch and continued sees each batch, and each validation, as if it had not been left."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import DataLoaderParams, Plugin, StopReason, Trainer, TrainingState

OPTIONS: "dict[str, dict[str, Any]]" = {
    "epochs": {"train_unit": "epoch", "total_steps": 4},
    "epochs of windows": {"train_unit": "epoch", "total_steps": 4, "accumulation_steps": 3},
    "iterations": {"train_unit": "iteration", "total_steps": 20},
    "windows": {"train_unit": "iteration", "total_steps": 10, "accumulation_steps": 2},
    "windows that end with epochs": {
        "train_unit": "iteration",
        "total_steps": 10,
        "accumulation_steps": 3,
        "flush_at_epoch_end": True,
    },
    "validated": {"train_unit": "iteration", "total_steps": 20, "valid_frequency": 3},
}


def make_data() -> RangeData:
    """Epochs of five batches, the last one smaller."""
    return RangeData(14, batch_size=3, shuffle=True)


def run(root: "Path | None", options: "dict[str, Any]", **model_options: Any) -> "tuple[RecordingModel, Any]":
    """One incarnation."""
    model = RecordingModel(**model_options)
    return model, Trainer("run", chkpt_root=root, use_cpu=True, **options).fit(model, make_data())


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_D9_D10_D11_T12_whatever_the_batches_at_which_it_stops_a_run_goes_on_with_the_next_one(
    name: str, tmp_path: Path
) -> None:
    reference, expected = run(None, OPTIONS[name])
    for epoch in range(len(reference.batches) // 5):
        samples = [sample for batch in reference.batches[5 * epoch :][:5] for sample in batch]
        assert sorted(samples) == list(range(14)), epoch
    for stop in range(1, len(reference.batches)):
        root = tmp_path / str(stop)
        first, _ = run(root, OPTIONS[name], stop_after=stop)
        second, _ = run(root, OPTIONS[name], stop_after=stop + 4)
        third, outcome = run(root, OPTIONS[name])
        assert first.batches + second.batches + third.batches == reference.batches, stop
        assert first.counters + second.counters + third.counters == reference.counters, stop
        assert outcome.state == expected.state
        if second.batches and len(first.batches) % 5 == 0:  # at the last batch of an epoch, the next one begins
            assert second.hooks.index("on_training_epoch_start") < second.hooks.index("train_step"), stop


class Drawing(RecordingModel):
    transient = (*RecordingModel.transient, "drawn")

    def __init__(self, stop_after: "int | None" = None) -> None:
        super().__init__(stop_after=stop_after)
        self.drawn: list[float] = []

    def on_training_start(self) -> None:
        torch.rand(3)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.drawn.append(float(torch.rand(1)))


class DrawingPlugin(Plugin):
    def on_training_start(self) -> None:
        torch.rand(3)


def test_D9_what_is_drawn_when_training_starts_again_does_not_matter(tmp_path: Path) -> None:
    def draw(root: "Path | None", stop_after: "int | None" = None) -> "list[float]":
        model, trainer = Drawing(stop_after), Trainer("run", total_steps=2, chkpt_root=root, use_cpu=True)
        trainer.register_plugin(DrawingPlugin("drawing"))
        trainer.fit(model, make_data())
        return model.drawn

    reference = draw(None)
    for stop in range(1, len(reference)):
        root = tmp_path / str(stop)
        assert draw(root, stop) + draw(root) == reference, stop


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["epoch", "iteration"])
def test_D16_a_run_left_in_a_later_phase_goes_on_with_that_phases_data(unit: str, tmp_path: Path) -> None:
    options = {"train_unit": unit, "total_steps": 5 if unit == "epoch" else 18, "use_cpu": True}

    def train(root: "Path | None", stop: "int | None") -> RecordingModel:
        model = RecordingModel(stop_after=stop, advance_at=5)
        Trainer("run", chkpt_root=root, **options).fit(model, RangeData(4, 3, 2, shuffle=True))  # type: ignore[arg-type]
        return model

    reference = train(None, None)
    hundreds = [batch[0] // 100 for batch in reference.batches]
    assert hundreds == sorted(hundreds)
    assert set(hundreds) == {0, 1, 2}
    assert hundreds.index(1) == (8 if unit == "epoch" else 5)
    for stop in range(1, len(reference.batches)):
        first = train(tmp_path / str(stop), stop)
        second = train(tmp_path / str(stop), None)
        assert first.batches + second.batches == reference.batches, stop


def test_the_phase_after_the_last_one_is_the_last_one() -> None:
    model = RecordingModel(advance_at=1)
    Trainer("run", train_unit="iteration", total_steps=9, use_cpu=True).fit(model, RangeData(3, 3))
    assert [batch[0] // 100 for batch in model.batches] == [0] + [1] * 8


def test_a_run_that_must_not_resume_starts_over(tmp_path: Path) -> None:
    run(tmp_path, OPTIONS["epochs"], stop_after=7)
    model, outcome = run(tmp_path, {**OPTIONS["epochs"], "resume": False})
    assert len(model.batches) == 20
    assert outcome.resumed_from is None
    assert outcome.state.global_iteration == 20


def test_a_pause_that_the_manager_asks_for_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = run(None, OPTIONS["windows"])
    requests = iter([False, False, True])
    monkeypatch.setattr("proctor.sdk.pytorch.trial.should_stop", lambda: next(requests, False))
    first, outcome = run(tmp_path, OPTIONS["windows"])
    second, last = run(tmp_path, OPTIONS["windows"])
    assert outcome.reason is StopReason.REQUESTED
    assert outcome.state.stop_reason == ""
    assert "on_training_end" not in first.hooks
    assert len(first.batches) == 6
    assert first.batches + second.batches == reference.batches
    assert last.reason is StopReason.COMPLETED


class Disturbed:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + 0.5 * torch.rand(1)


class ShuffledValidation(RangeData):
    def __init__(self, workers: int) -> None:
        super().__init__(2)
        self.workers = workers

    def setup(self) -> None:
        super().setup()
        self.set_validation(Disturbed(), DataLoaderParams(batch_size=6, shuffle=True, num_workers=self.workers))


class Watching(RecordingModel):
    transient = (*RecordingModel.transient, "seen")

    def __init__(self, stop_after: "int | None" = None) -> None:
        super().__init__(stop_after=stop_after)
        self.seen: list[list[float]] = []

    def valid_step(self, batch: Any, step: int) -> None:
        self.seen.append(batch.flatten().tolist())


def watch(root: "Path | None", workers: int, stop_after: "int | None" = None) -> "list[list[float]]":
    model = Watching(stop_after)
    trainer = Trainer("run", total_steps=4, valid_frequency=1, chkpt_root=root, use_cpu=True)
    trainer.fit(model, ShuffledValidation(workers))
    return model.seen


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_each_validation_has_an_order_and_draws_of_its_own_and_a_resume_goes_on_with_them(
    workers: int, tmp_path: Path
) -> None:
    reference = watch(None, workers)
    orders = {tuple(map(int, seen)) for seen in reference}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(6)) for order in orders)
    draws = {tuple(sorted(value % 1 for value in seen)) for seen in reference}
    assert len(draws) == 4
    assert watch(tmp_path, workers, stop_after=4) + watch(tmp_path, workers) == reference
