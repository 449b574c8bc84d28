"""Validations read their data as training does: anew in each cycle, and after a resume as if nothing had been."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import DataLoaderParams, Trainer


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
