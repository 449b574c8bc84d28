"""The log file and the TensorBoard folder of a run: a resumed run writes to its own, and to no other run's."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.checkpoints.saving import find_newest_checkpoint
from proctor.sdk.pytorch import Trainer

EPOCH = 6  # its steps


class LogFiles:
    """Each has the steps that were trained since it was begun."""

    is_filled = False

    def options(self, folder: Path) -> "dict[str, Any]":
        return {"log_path": folder, "enable_file_logging": True}

    def steps(self, place: Path) -> "list[int]":
        return [int(step) for step in re.findall(r"step (\d+): loss=", place.read_text())]


class TensorBoard:
    """A new folder is filled from the history."""

    is_filled = True

    def options(self, folder: Path) -> "dict[str, Any]":
        return {"run_path": folder, "enable_tensorboard": True}

    def steps(self, place: Path) -> "list[int]":
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        events = [event for path in place.glob("events.*") for event in EventFileLoader(str(path)).Load()]
        return sorted(event.step for event in events for value in event.summary.value if value.tag == "loss")


class Places:
    """Runs that write to places in one folder."""

    def __init__(self, kind: Any, root: Path) -> None:
        self.kind, self.root = kind, root

    def fit(self, epochs: int = 1, *, name: str = "run", chkpt: "str | None" = "chkpt") -> None:
        """Train; in a trial `chkpt` may be None for the trial's own folder."""
        options = {"total_steps": epochs, "chkpt_frequency": 1, "use_cpu": True, **self.kind.options(self.root / "all")}
        folder = None if chkpt is None else self.root / chkpt
        Trainer(name, chkpt_root=folder, **options).fit(DigitsModel(), DigitsData())

    def find(self) -> "list[Path]":
        return sorted((self.root / "all").iterdir())

    def check(self, place: Path, *, begun: int = 0, epochs: int) -> None:
        """It has each step of these epochs once, if it was begun after so many."""
        begun = 0 if self.kind.is_filled else begun
        assert self.kind.steps(place) == list(range(begun * EPOCH + 1, epochs * EPOCH + 1))


@pytest.fixture(
    params=[
        LogFiles,
        pytest.param(
            TensorBoard, marks=pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is missing")
        ),
    ]
)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    return Places(request.param(), tmp_path)


def content(place: Path) -> "dict[Path, bytes]":
    return {path: path.read_bytes() for path in (place, *place.rglob("*")) if path.is_file()}


def test_where_the_first_one_is_gone_a_resumed_run_begins_a_new_one(places: Places) -> None:
    places.fit()
    (places.root / "all").rename(places.root / "gone")
    places.fit(2)
    (new,) = places.find()
    places.check(new, begun=1, epochs=2)


def test_where_the_first_one_may_not_be_written_a_resumed_run_begins_a_new_one(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.fit()
    (first,) = places.find()
    before, may = content(first), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != first and may(path, mode))  # as root may all
    places.fit(2)
    assert content(first) == before
    (new,) = {*places.find()} - {first}
    places.check(new, begun=1, epochs=2)


def test_a_run_that_goes_on_from_a_copy_of_its_folder_begins_a_new_one(places: Places) -> None:
    places.fit()
    (original,) = places.find()
    before = content(original)
    shutil.copytree(places.root / "chkpt", places.root / "branch")
    places.fit(2, chkpt="branch")
    assert content(original) == before
    (branch,) = {*places.find()} - {original}
    places.check(branch, begun=1, epochs=2)
    (places.root / "link").symlink_to("chkpt")
    places.fit(2, chkpt="link")  # another name of the folder is no copy
    assert places.find() == sorted([original, branch])
    places.check(original, epochs=2)


@pytest.mark.parametrize("chkpt", [None, "chkpt"])
def test_a_trial_that_continues_another_ones_checkpoint_has_one_of_its_own_in_all_its_attempts(
    places: Places, monkeypatch: pytest.MonkeyPatch, chkpt: "str | None"
) -> None:
    begin_attempt(monkeypatch, places.root / "a", trial="a")
    places.fit(chkpt=chkpt)
    (first,) = places.find()
    before = content(first)
    for epochs, (attempt, origin) in enumerate([("b", "a"), ("b-again", "b")], 2):
        newest = find_newest_checkpoint(str(places.root / origin))
        begin_attempt(monkeypatch, places.root / attempt, trial="b", resume=newest)
        places.fit(epochs, chkpt=chkpt)
    assert content(first) == before
    (second,) = {*places.find()} - {first}
    assert second.name.startswith("run_b_")
    places.check(second, begun=1, epochs=3)


def test_the_runs_of_a_retried_trial_go_on_each_in_its_own(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    folds = ["fold-1", "fold-2", "fold-3"]
    begin_attempt(monkeypatch, places.root / "first")
    for name in folds[:2]:
        places.fit(name=name, chkpt=None)
    newest = find_newest_checkpoint(str(places.root / "first"))
    begin_attempt(monkeypatch, places.root / "second", resume=newest)
    for name in folds:
        places.fit(2, name=name, chkpt=None)
    assert [place.name.partition("_")[0] for place in places.find()] == folds
    for place in places.find():
        places.check(place, epochs=2)
