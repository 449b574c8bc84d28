"""Logs on a disk that is full in the middle of a run: a real one, which only root can make (rows X9, X11)."""

import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import LogWarning, StopReason, Trainer, TrainingState, read_history

DISK_BYTES = 1 << 20
EPOCHS = 3


@pytest.fixture
def disk(tmp_path: Path) -> "Iterator[Path]":
    """A small file system in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("a file system can only be mounted by root, where the machine allows it")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], timeout=60, check=True)


class Filling(DigitsModel):
    """Fills the disk in the second epoch and makes room in the last one."""

    def __init__(self, ballast: Path) -> None:
        super().__init__()
        self.ballast = ballast

    def on_training_epoch_start(self, epoch: int) -> None:
        if epoch == 1:
            with open(self.ballast, "wb", buffering=0) as file:
                while _write(file):
                    pass
        if epoch == EPOCHS - 1:
            self.ballast.unlink()

    def train_step(self, batch: Any, state: TrainingState) -> None:
        super().train_step(batch, state)
        self.log({"long name of a metric that fills what is left of a page " * 20: state.global_iteration})


def _write(file: Any) -> bool:
    try:
        return bool(file.write(bytes(4096)))
    except OSError:
        return False


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_X9_X11_logs_on_a_disk_that_is_full_for_a_while_are_whole_in_the_end(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.tensorboard._INTERVAL_SECONDS", 0.0)
    places: dict[str, Any] = {"log_path": disk / "logs", "run_path": disk / "runs"}
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
        outcome = trainer.fit(Filling(disk / "ballast"), DigitsData())
    assert outcome.reason is StopReason.COMPLETED
    assert len(reported) == 2  # one for each file
    rows = list(read_history(tmp_path / "chkpt" / "run" / "history.jsonl"))
    (log,) = (disk / "logs").iterdir()
    assert log.read_text().count(": loss=") == outcome.state.global_iteration
    (events,) = (disk / "runs").glob("*/events.*")
    points = [event.step for event in EventFileLoader(str(events)).Load() for _ in event.summary.value]
    assert points == [row["step"] for row in rows]
