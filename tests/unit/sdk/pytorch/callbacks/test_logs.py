"""The log file of a run (rows X9, X10, X12)."""

import io
import sys
from functools import partial
from pathlib import Path
from time import localtime
from typing import Any

import pytest
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch import (
    CheckpointWarning,
    NotExactError,
    Outcome,
    Trainer,
    TrainerError,
    TrainingState,
)
from proctor.sdk.pytorch.callbacks.base import make_new, name_start
from proctor.sdk.pytorch.callbacks.log_file import LOGGER
from proctor.sdk.pytorch.checkpoints.filesystem import FolderLock
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.serialization import load
from proctor.sdk.pytorch.plain import open_run


def fit(root: Path, model: "DigitsModel | None" = None, **options: Any) -> Outcome:
    chosen = {"total_steps": 1, "chkpt_frequency": 1, "use_cpu": True, "enable_file_logging": True, **options}
    chosen.setdefault("log_path", root / "logs")
    return Trainer("run", chkpt_root=root / "chkpt", **chosen).fit(model or DigitsModel(), DigitsData())


def logs(root: Path) -> "list[Path]":
    return sorted((root / "logs").glob("*.log"))


def test_X9_the_folder_is_made_if_logging_is_wanted_and_the_file_tells_the_run(tmp_path: Path) -> None:
    fit(tmp_path, enable_file_logging=False)
    assert not (tmp_path / "logs").exists()
    fit(tmp_path, resume=False)
    (path,) = logs(tmp_path)
    text = path.read_text()
    for part in (
        "run run starts, seed 6691",
        "epoch 1 step 6: loss=",
        "checkpoint run_epoch_1_iter_6.pth",
        "completed",
    ):
        assert part in text


class Failing(DigitsModel):
    def train_step(self, batch: Any, state: TrainingState) -> None:
        if state.global_iteration == 3:
            raise ValueError("no such sample")
        super().train_step(batch, state)


def test_X9_a_failure_is_in_the_file_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such sample"):
        fit(tmp_path, Failing())
    text = logs(tmp_path)[0].read_text()
    assert "run run failed: ValueError: no such sample" in text
    assert "in train_step" in text
    assert not LOGGER.handlers


class SetUp(DigitsModel):
    """Says something in its set-up, or fails there."""

    def __init__(self, problem: "Exception | None" = None) -> None:
        super().__init__()
        self.problem = problem

    def setup(self) -> None:
        LOGGER.info("the model is set up")
        if self.problem is not None:
            raise self.problem
        super().setup()


def test_X9_what_is_said_in_the_set_up_is_in_the_file_before_the_start(tmp_path: Path) -> None:
    fit(tmp_path, SetUp())
    fit(tmp_path, SetUp(), total_steps=2)
    (path,) = logs(tmp_path)
    printed = [line.partition(" INFO ")[2] for line in path.read_text().splitlines()]
    starts = [number for number, line in enumerate(printed) if line.startswith(("run run starts", "run run continues"))]
    assert [printed[number - 1] for number in starts] == ["the model is set up"] * 2
    assert printed.count("the model is set up") == 2


def test_X9_a_failure_in_the_set_up_begins_a_file(tmp_path: Path) -> None:
    before = (list(LOGGER.handlers), LOGGER.level)
    with pytest.raises(RuntimeError, match="no such layer"):
        fit(tmp_path, SetUp(ValueError("no such layer")))
    text = logs(tmp_path)[0].read_text()
    assert text.index("the model is set up") < text.index("run run failed: ValueError: no such layer")
    assert "in setup" in text
    assert (list(LOGGER.handlers), LOGGER.level) == before


def test_X9_a_failure_in_the_resume_is_in_a_file(tmp_path: Path) -> None:
    fit(tmp_path)
    for path in (tmp_path / "chkpt" / "run").glob("*.pth"):
        path.write_bytes(b"torn")
    with pytest.warns(CheckpointWarning), pytest.raises(TrainerError):
        fit(tmp_path, total_steps=2)
    _, second = sorted(logs(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    assert "run run failed: UnreadableCheckpointError" in second.read_text()


def test_X10_a_resume_that_is_refused_is_told_in_the_file_of_the_run(tmp_path: Path) -> None:
    fit(tmp_path, random_seed=1)
    with pytest.raises(NotExactError):
        fit(tmp_path, total_steps=2, random_seed=2, strict_resume=True)
    (path,) = logs(tmp_path)
    assert "run run failed: NotExactError" in path.read_text()


def test_X9_a_folder_that_another_run_holds_is_told_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.folder.FolderLock", partial(FolderLock, patience_seconds=0.0))
    held = CheckpointFolder(tmp_path / "chkpt", "run")
    held.open()
    try:
        with pytest.raises(TrainerError):
            fit(tmp_path)
    finally:
        held.close()
    assert "run run failed: TrainerError" in logs(tmp_path)[0].read_text()


def test_X9_a_wrong_folder_does_not_hide_what_a_run_failed_of(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(RuntimeError, match="no such layer"):
        fit(tmp_path, SetUp(ValueError("no such layer")))
    with pytest.raises(RuntimeError, match="FileExistsError"):
        fit(tmp_path)
    assert not LOGGER.handlers


def test_X9_a_resume_with_nothing_left_to_do_writes_nothing(tmp_path: Path) -> None:
    fit(tmp_path)
    (path,) = logs(tmp_path)
    before = path.read_bytes()
    fit(tmp_path, SetUp())
    assert logs(tmp_path) == [path]
    assert path.read_bytes() == before


def test_X9_a_run_in_the_handling_of_a_failure_has_not_failed(tmp_path: Path) -> None:
    try:
        raise ValueError("of another run")
    except ValueError:
        fit(tmp_path)
    assert "of another run" not in logs(tmp_path)[0].read_text()


def test_X10_a_name_has_the_run_the_trial_and_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start = localtime(0)
    clock = f"{start.tm_hour:02d}-{start.tm_min:02d}-{start.tm_sec:02d}"
    month = "Jan01" if start.tm_mon == 1 else "Dec31"
    assert name_start("run", start) == f"run_{month}_{clock}"
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.base.is_in_trial", lambda: True)
    monkeypatch.setattr(sdk, "get_trial_id", lambda: "aB3xYz")
    assert name_start("run", start) == f"run_aB3xYz_{month}_{clock}"


def test_X10_two_starts_in_one_second_have_places_of_their_own(tmp_path: Path) -> None:
    files = [make_new(tmp_path / "logs", "run", ".log") for _ in range(3)]
    folders = [make_new(tmp_path / "runs", "run") for _ in range(3)]
    assert [file.name for file in files] == ["run.log", "run_2.log", "run_3.log"]
    assert [folder.name for folder in folders] == ["run", "run_2", "run_3"]


def test_X10_a_resumed_run_goes_on_in_the_file_it_began_though_another_folder_is_named(tmp_path: Path) -> None:
    fit(tmp_path)
    (path,) = logs(tmp_path)
    with open(path, "a") as file:
        file.write("a line that a kill has to")  # no end
    outcome = fit(tmp_path, total_steps=2, log_path=tmp_path / "elsewhere")
    assert logs(tmp_path) == [path]
    assert not (tmp_path / "elsewhere").exists()
    lines = path.read_text().splitlines()
    assert "a line that a kill has to" in lines
    assert sum("run run continues from" in line and "epoch 1, step 6" in line for line in lines) == 1
    assert load(Path(str(outcome.checkpoint)))["observers"]["log_file"] == {"path": str(path)}


def test_X12_the_third_run_of_a_process_writes_each_line_once(tmp_path: Path) -> None:
    before = (list(LOGGER.handlers), LOGGER.level)
    for epochs in (1, 2, 3):
        fit(tmp_path, total_steps=epochs)
    assert (list(LOGGER.handlers), LOGGER.level) == before
    lines = logs(tmp_path)[0].read_text().splitlines()
    assert sum("epoch 3 step 18: loss=" in line for line in lines) == 1


def test_X12_runs_that_are_open_side_by_side_keep_to_their_files(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": range(4), "use_cpu": True, "enable_file_logging": True}
    with (
        open_run("one", dict, log_path=tmp_path / "logs", **options) as one,
        open_run("other", dict, log_path=tmp_path / "logs", **options) as other,
    ):
        one.log({"loss": 1.0})
        other.log({"loss": 2.0})
        LOGGER.info("of both")
    texts = [path.read_text() for path in logs(tmp_path)]
    assert ["loss=1" in text for text in texts] == [True, False]
    assert ["loss=2" in text for text in texts] == [False, True]
    assert ["of both" in text for text in texts] == [True, True]


class Judged(DigitsModel):
    def test_step(self, batch: Any, step: int) -> None:
        self.log({"accuracy": 0.5})


def test_a_test_appends_to_the_file_of_the_training_and_leaves_its_history_alone(tmp_path: Path) -> None:
    fit(tmp_path)
    history = (tmp_path / "chkpt" / "run" / "history.jsonl").read_bytes()
    trainer = Trainer(
        "run", chkpt_root=tmp_path / "chkpt", log_path=tmp_path / "logs", use_cpu=True, enable_file_logging=True
    )
    trainer.test(Judged(), DigitsData())
    (path,) = logs(tmp_path)
    assert "testing of 3 batches" in path.read_text()
    assert "accuracy=0.5" in path.read_text()
    assert (tmp_path / "chkpt" / "run" / "history.jsonl").read_bytes() == history


def test_what_is_drawn_on_a_terminal_is_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.progress.REDRAW_SECONDS", 0.0)
    fit(tmp_path, enable_progress_bar=True)
    assert "[##########]" in terminal.getvalue()
    assert "[#" not in logs(tmp_path)[0].read_text()
