"""A run in TensorBoard (row X11): each step once in the event files, however often it was cut off."""

import os
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.full_disk import FullDisk
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import ConfigurationError, LogWarning, Trainer, TrainingState
from proctor.sdk.pytorch.callbacks.tensorboard import _name_events

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")


class Interrupted(Exception):
    """As if the process had been killed, after metrics were written."""


class Cut(DigitsModel):
    """Raises in a step after its metrics were written; `at` is 0 for never.

    :param rooms: the room of the disk from a step on.
    """

    transient = ("samples", "disk")

    def __init__(
        self, at: int = 0, disk: "FullDisk | None" = None, rooms: "dict[int, int | None] | None" = None
    ) -> None:
        super().__init__()
        self.at = at
        self.disk = disk
        self.rooms = rooms or {}

    def train_step(self, batch: Any, state: TrainingState) -> None:
        if self.disk is not None and state.global_iteration in self.rooms:
            self.disk.room = self.rooms[state.global_iteration]
        super().train_step(batch, state)
        if state.global_iteration == self.at:
            raise Interrupted


def fit(root: Path, cut: int = 0, *, kind: "type[Cut]" = Cut, **disturbances: Any) -> Cut:
    """Train, and return the model."""
    model = kind(cut, **disturbances)
    trainer = Trainer(
        "run",
        train_unit="iteration",
        total_steps=12,
        chkpt_frequency=4,
        chkpt_root=root / "chkpt",
        run_path=root / "runs",
        enable_tensorboard=True,
        use_cpu=True,
        background_writes=False,
        train_exceptions=(Interrupted,),
    )
    with suppress(Interrupted):
        trainer.fit(model, DigitsData())
    return model


def points(folder: Path, tag: str = "loss") -> "list[tuple[int, Any]]":
    """Every point of a metric that is in the files, hidden or not."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [event for path in folder.glob("events.*") for event in EventFileLoader(str(path)).Load()]
    found = [(event.step, value.tensor) for event in events for value in event.summary.value if value.tag == tag]
    return sorted((step, tensor.float_val[0] if tensor.float_val else None) for step, tensor in found)


def steps(root: Path, tag: str = "loss") -> "list[int]":
    """The steps of all points of the newest folder."""
    return [step for step, _ in points(run_folders(root)[-1], tag)]


def run_folders(root: Path) -> "list[Path]":
    return sorted((root / "runs").iterdir())


def files(folder: Path) -> "dict[Path, bytes]":
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@needs_tensorboard
def test_X11_a_run_that_was_cut_off_twice_has_each_step_once_and_the_values_of_one_that_was_not(tmp_path: Path) -> None:
    fit(tmp_path / "whole")
    for cut in (6, 11, 0):
        fit(tmp_path / "cut", cut=cut)
    (whole,) = run_folders(tmp_path / "whole")
    (folder,) = run_folders(tmp_path / "cut")
    assert steps(tmp_path / "cut") == list(range(1, 13))
    assert points(folder) == points(whole)


@needs_tensorboard
def test_X11_where_the_event_files_are_torn_a_new_folder_is_filled_from_the_history(tmp_path: Path) -> None:
    fit(tmp_path, cut=6)
    (events,) = run_folders(tmp_path)[0].glob("events.*")
    os.truncate(events, 10)
    fit(tmp_path)
    assert steps(tmp_path) == list(range(1, 13))


@needs_tensorboard
def test_a_test_of_a_run_does_not_touch_the_points_of_its_training(tmp_path: Path) -> None:
    fit(tmp_path, cut=6)

    class Judged(DigitsModel):
        def test_step(self, batch: Any, step: int) -> None:
            self.log({"accuracy": 0.5})

    trainer = Trainer(
        "run", chkpt_root=tmp_path / "chkpt", run_path=tmp_path / "runs", enable_tensorboard=True, use_cpu=True
    )
    trainer.test(Judged(), DigitsData())
    fit(tmp_path)
    (folder,) = run_folders(tmp_path)
    assert len(list(folder.glob("events.*.test"))) == 1
    assert [step for step, _ in points(folder)] == list(range(1, 13))


@needs_tensorboard
def test_X11_a_checkpoint_that_does_not_say_whose_it_is_begins_a_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.base._OWNER", "of an older version")
    fit(tmp_path, cut=6)
    monkeypatch.undo()
    (first,) = run_folders(tmp_path)
    before = files(first)
    fit(tmp_path)
    assert files(first) == before
    assert len(run_folders(tmp_path)) == 2
    assert steps(tmp_path) == list(range(1, 13))


@needs_tensorboard
def test_X11_a_tensorboard_that_looks_on_forgets_the_steps_that_are_done_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(tmp_path, cut=6)
    (folder,) = run_folders(tmp_path)
    onlooker = EventAccumulator(str(folder))
    onlooker.Reload()
    assert [point.step for point in onlooker.Scalars("loss")] == list(range(1, 7))
    fit(tmp_path)
    onlooker.Reload()
    assert [point.step for point in onlooker.Scalars("loss")] == list(range(1, 13))


@needs_tensorboard
def test_X11_a_disk_that_stays_full_costs_points_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(tmp_path / "runs", monkeypatch)
    with pytest.warns(LogWarning) as reported:
        assert fit(tmp_path, disk=disk, rooms={3: 0}).trainer.state.global_iteration == 12
    assert len(reported) == 1
    assert all(step <= 3 for step in steps(tmp_path))


@needs_tensorboard
def test_X11_where_a_checkpoint_was_made_with_points_still_waiting_a_new_folder_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(tmp_path / "runs", monkeypatch)
    with pytest.warns(LogWarning):
        fit(tmp_path, cut=10, disk=disk, rooms={3: 0})
    disk.room = None
    fit(tmp_path)
    assert steps(tmp_path) == list(range(1, 13))


@needs_tensorboard
def test_a_model_has_a_writer_whose_points_stand_once_and_no_thread(tmp_path: Path) -> None:
    class Drawing(Cut):
        """Writes a histogram and a text at each step, and closes the writer in between."""

        def train_step(self, batch: Any, state: TrainingState) -> None:
            assert threading.active_count() == before
            self.tensorboard.add_histogram("weights", torch.arange(3.0), state.global_iteration)
            self.tensorboard.add_text("note", "word", state.global_iteration)
            self.tensorboard.close()
            super().train_step(batch, state)

    before = threading.active_count()
    for cut in (6, 0):
        assert fit(tmp_path, cut, kind=Drawing).tensorboard is None
    assert len(run_folders(tmp_path)) == 1
    for tag in ("loss", "weights", "note/text_summary"):
        assert steps(tmp_path, tag) == list(range(1, 13))


@needs_tensorboard
def test_event_files_are_read_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    names = []
    for _ in range(12):
        names.append(_name_events(tmp_path, ""))
        (tmp_path / names[-1]).touch()
    assert sorted(names) == names


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.tensorboard.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'proctor\[tensorboard\]'"):
        fit(tmp_path)
