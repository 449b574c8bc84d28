"""The logs of a training on a disk that is full in the middle of the run (rows X9, X11)."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.disks import Disk
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import LogWarning, StopReason, Trainer, TrainingState, read_history

EPOCHS = 3


class Filling(DigitsModel):
    """Fills the disk in the second epoch and makes room in the last one."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk

    def on_training_epoch_start(self, epoch: int) -> None:
        if epoch == 1:
            self.disk.fill()
        if epoch == EPOCHS - 1:
            self.disk.free()

    def train_step(self, batch: Any, state: TrainingState) -> None:
        super().train_step(batch, state)
        self.log({"long name of a metric that fills what is left of a page " * 20: state.global_iteration})


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_X9_X11_logs_on_a_disk_that_is_full_for_a_while_are_whole_in_the_end(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.tensorboard._INTERVAL_SECONDS", 0.0)
    places: dict[str, Any] = {"log_path": disk.folder / "logs", "run_path": disk.folder / "runs"}
    trainer = Trainer(
        "run",
        total_steps=EPOCHS,
        chkpt_root=tmp_path / "chkpt",
        use_cpu=True,
        enable_file_logging=True,
        enable_tensorboard=True,
        **places,
    )
    with pytest.warns(LogWarning, match="No space left|bytes fitted") as reported:
        outcome = trainer.fit(Filling(disk), DigitsData())
    assert outcome.reason is StopReason.COMPLETED
    assert len(reported) == 2  # one for each file
    rows = list(read_history(tmp_path / "chkpt" / "run" / "history.jsonl"))
    (log,) = (disk.folder / "logs").iterdir()
    assert log.read_text().count(": loss=") == outcome.state.global_iteration
    (events,) = (disk.folder / "runs").glob("*/events.*")
    points = [event.step for event in EventFileLoader(str(events)).Load() for _ in event.summary.value]
    assert points == [row["step"] for row in rows]
