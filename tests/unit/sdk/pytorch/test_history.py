"""The history of the metrics: each step once, however often the run was cut off (row X11)."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from proctor.sdk.pytorch.history import History, HistoryPosition, digest_rows, read_history


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
    saved = HistoryPosition.from_json(json.loads(json.dumps(first.position.to_json())))
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
    assert resumed.digest == whole.digest == digest_rows(read_history(tmp_path / "a"))
    other = History(None)
    add(other, 1, 2, 4)
    assert other.digest != whole.digest


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


def test_a_history_that_is_shorter_than_its_checkpoint_knows_is_told_and_continued(path: Path) -> None:
    history = History(path)
    add(history, 1, 2)
    position = history.position
    path.write_bytes(path.read_bytes()[:-5])
    resumed = History(path)
    with pytest.warns(UserWarning, match="first rows are missing"):
        resumed.cut(position)
    add(resumed, 3)
    assert steps(path) == [1, 3]
    assert resumed.position.rows == 3


def test_a_history_that_is_gone_is_told_and_begun_again(path: Path) -> None:
    history = History(path)
    add(history, 1, 2)
    path.unlink()
    resumed = History(path)
    with pytest.warns(UserWarning, match="has 0 bytes"):
        resumed.cut(history.position)
    add(resumed, 3)
    assert steps(path) == [3]
    later = History(path)
    later.cut(resumed.position)
    add(later, 4)
    assert steps(path) == [3, 4]


def test_numbers_are_kept_to_the_last_bit_and_odd_ones_are_json(path: Path) -> None:
    values: dict[str, Any] = {
        "third": 1 / 3,
        "tensor": torch.tensor(0.1),
        "count": 3,
        "flag": True,
        "nan": float("nan"),
        "down": float("-inf"),
        "text": "best",
        "none": None,
    }
    History(path).append(values, step=1, iteration=1, epoch=1)
    metrics = next(read_history(path))["metrics"]
    assert metrics["third"] == 1 / 3
    assert metrics["tensor"] == torch.tensor(0.1).item()
    assert (metrics["nan"], metrics["down"]) == ("NaN", "-Infinity")
    assert (metrics["count"], metrics["flag"], metrics["text"], metrics["none"]) == (3, True, "best", None)


def test_what_is_no_metric_is_refused_and_leaves_no_row(path: Path) -> None:
    history = History(path)
    with pytest.raises(TypeError, match="'loss' must be a number"):
        history.append({"loss": [1]}, step=1, iteration=1, epoch=1)
    assert history.position == HistoryPosition()
    assert not path.exists()


def test_a_full_disk_leaves_whole_rows_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(path)
    add(history, 1)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(OSError, match="only 5 of"):
            add(history, 2)
    add(history, 2)
    assert steps(path) == [1, 2]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _refuse)
        with pytest.raises(OSError, match="No space"):
            add(history, 3)
    assert steps(path) == [1, 2]


def _refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_checkpoint_without_a_history_is_its_beginning() -> None:
    assert HistoryPosition.from_json(None) == HistoryPosition()
