"""The history of the metrics: each step once, however often the run was cut off (row X11)."""

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fakes.full_disk import refuse
from fakes.history_digest import digest_of
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import Trainer
from proctor.sdk.pytorch.checkpoints.history import History, HistoryPosition, read_history
from proctor.sdk.pytorch.errors import CheckpointNotStoredError, CheckpointWarning, ConfigurationError


def add(history: History, *steps: int) -> None:
    for step in steps:
        history.append({"loss": 1.0 / step}, step=step, iteration=step, epoch=1)


def steps(path: Path) -> "list[int]":
    return [row["step"] for row in read_history(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "history.jsonl"


def test_X11_a_resumed_history_has_each_step_once(path: Path) -> None:
    first = History(path)
    add(first, 1, 2)
    saved = HistoryPosition.from_json(json.loads(json.dumps(asdict(first.position))))
    add(first, 3, 4)
    for _ in range(3):  # killed and resumed, again and again
        resumed = History(path)
        resumed.cut(saved)
        assert steps(path) == [1, 2]
        add(resumed, 3, 4)
        resumed.close()
        assert steps(path) == [1, 2, 3, 4]
        assert resumed.position == first.position


def test_X11_the_digest_is_that_of_an_uninterrupted_history_and_does_not_depend_on_times(tmp_path: Path) -> None:
    whole = History(None)
    add(whole, 1, 2, 3)
    part = History(tmp_path / "a")
    add(part, 1, 2)
    resumed = History(tmp_path / "a")
    resumed.cut(part.position)
    add(resumed, 3)
    assert resumed.position.digest == whole.position.digest == digest_of(read_history(tmp_path / "a"))
    other = History(None)
    add(other, 1, 2, 4)
    assert other.position.digest != whole.position.digest


def test_X11_a_run_that_starts_anew_has_no_rows_of_an_earlier_one(path: Path) -> None:
    add(History(path), 1, 2, 3)
    add(History(path), 7)
    assert steps(path) == [7]


def test_rows_are_readable_from_the_moment_they_were_added_and_a_torn_last_one_is_left_out(path: Path) -> None:
    history = History(path)
    add(history, 1, 2)
    with open(path, "ab") as file:
        file.write(b'{"step":3,"itera')
    assert steps(path) == [1, 2]
    history.cut(history.position)
    add(history, 3)
    assert steps(path) == [1, 2, 3]


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "told", "left"), [(shorten, "first rows are missing", [1]), (Path.unlink, "has 0 bytes", [])]
)
def test_a_history_that_is_shorter_than_its_checkpoint_knows_or_gone_is_told_and_continued(
    path: Path, damage: "Callable[[Path], None]", told: str, left: "list[int]"
) -> None:
    history = History(path)
    add(history, 1, 2)
    damage(path)
    resumed = History(path)
    with pytest.warns(UserWarning, match=told):
        resumed.cut(history.position)
    add(resumed, 3)
    assert steps(path) == [*left, 3]
    later = History(path)
    later.cut(resumed.position)
    add(later, 4)
    assert steps(path) == [*left, 3, 4]
    assert later.position.rows == 4


def test_numbers_are_kept_to_the_last_bit_and_odd_ones_are_json(path: Path) -> None:
    values = {"third": 1 / 3, "nan": float("nan"), "down": float("-inf")}
    History(path).append(values, step=1, iteration=1, epoch=1)
    metrics = next(read_history(path))["metrics"]
    assert metrics["third"] == 1 / 3
    assert (metrics["nan"], metrics["down"]) == ("NaN", "-Infinity")


def test_a_full_disk_leaves_whole_rows_only_and_gets_the_others_when_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(path)
    add(history, 1)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.warns(CheckpointWarning, match="only 5 of"):
            add(history, 2)
        patch.setattr(os, "write", refuse(errno.ENOSPC))
        add(history, 3)  # told once
        with pytest.raises(OSError, match="No space"):
            history.sync()  # no checkpoint may count these rows
    assert steps(path) == [1]
    add(history, 4)
    assert steps(path) == [1, 2, 3, 4]
    assert history.position.size == path.stat().st_size
    assert history.position.digest == digest_of(read_history(path))
    history.close()


def test_many_rows_that_wait_are_not_all_tried_again_with_each_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, sizes = History(path), []

    def refuse_and_count(descriptor: int, data: bytes) -> Any:
        sizes.append(data.count(b"\n"))
        return refuse(errno.ENOSPC)()

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse_and_count)
        with pytest.warns(CheckpointWarning, match="No space"):
            add(history, *range(1, 301))
    assert max(sizes) < 300
    add(history, 301)
    assert steps(path) == list(range(1, 302))
    history.close()


def test_a_disk_that_is_full_to_the_end_is_an_error_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(path)
    add(history, 1)
    monkeypatch.setattr(os, "write", refuse(errno.ENOSPC))
    with pytest.warns(CheckpointWarning, match="No space"):
        add(history, 2, 3)
    with pytest.raises(CheckpointNotStoredError, match="the last 2 rows"):
        history.close()
    assert steps(path) == [1]


def test_a_disk_that_refuses_for_another_reason_is_an_error_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(path)
    add(history, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse(errno.EACCES))
        with pytest.raises(PermissionError):
            add(history, 2)
    add(history, 2)
    history.close()
    assert steps(path) == [1, 2]


def test_rows_that_waited_during_training_are_there_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def refuse_rows(descriptor: int, data: Any) -> Any:
        return refuse(errno.ENOSPC)() if bytes(data[:9]) == b'{"epoch":' else write(descriptor, data)

    class Filling(DigitsModel):
        def on_training_start(self) -> None:
            monkeypatch.setattr(os, "write", refuse_rows)

        def on_training_epoch_end(self, epoch: int) -> None:
            if epoch == 1:  # before the last checkpoint
                monkeypatch.setattr(os, "write", write)

    with pytest.warns(CheckpointWarning) as reported:
        Trainer("run", total_steps=2, chkpt_frequency=1, chkpt_root=tmp_path, use_cpu=True).fit(Filling(), DigitsData())
    assert len([warning for warning in reported if "rows of the history" in str(warning.message)]) == 1
    assert steps(tmp_path / "run" / "history.jsonl") == list(range(1, 13))


class Hasty(DigitsModel):
    def setup(self) -> None:
        super().setup()
        self.log({"lr": 0.01})


@pytest.mark.parametrize("total_steps", [1, 2])
def test_what_is_logged_before_a_run_has_begun_is_refused_and_the_history_stays(
    tmp_path: Path, total_steps: int
) -> None:
    options: dict[str, Any] = {"chkpt_root": tmp_path, "use_cpu": True}
    model = DigitsModel()
    Trainer("run", total_steps=1, **options).fit(model, DigitsData())
    history = tmp_path / "run" / "history.jsonl"
    before = history.read_bytes()
    assert before
    with pytest.raises(ConfigurationError, match=r"found \['lr'\].*on_training_start"):
        Trainer("run", total_steps=total_steps, **options).fit(Hasty(), DigitsData())
    with pytest.raises(ConfigurationError, match="no run is in progress"):
        model.log({"late": 1.0})
    assert history.read_bytes() == before
    Trainer("run", total_steps=total_steps, **options).fit(DigitsModel(), DigitsData())
    assert history.read_bytes().startswith(before)


def test_a_row_is_added_while_the_disk_is_being_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(path)
    add(history, 1)
    syncing, added = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        syncing.set()
        assert added.wait(10)
        os.fsync(descriptor)

    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.history.sync_file", sync)
    with ThreadPoolExecutor() as threads:
        storing = threads.submit(history.sync)
        assert syncing.wait(10)
        add(history, 2)
        added.set()
        storing.result()
    assert steps(path) == [1, 2]
    history.close()
