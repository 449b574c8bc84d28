"""The bars of a run (row X13)."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.trained_models import DigitsData, DigitsModel, Recipe

from proctor.sdk.pytorch import Trainer
from proctor.sdk.pytorch.fit import make_observers
from proctor.sdk.pytorch.observers.progress import REDRAW_SECONDS, Line, NoBar, Progress, RichBar, TqdmBar, find_bars
from proctor.sdk.pytorch.options import make_settings


class Drawing:
    """What was drawn, in its order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def make_bar(self, title: str, total: "int | None", start: int) -> "Drawn":
        self.lines.append(f"{title} {start}/{total}")
        return Drawn(self, title)


class Drawn:
    def __init__(self, drawing: Drawing, title: str) -> None:
        self.drawing = drawing
        self.title = title

    def move(self, place: int) -> None:
        self.drawing.lines.append(f"{self.title} {place}")

    def close(self) -> None:
        self.drawing.lines.append(f"{self.title} closed")


def fit(root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> "list[str]":
    drawing, seconds = Drawing(), [0.0]

    def tick() -> float:
        seconds[0] += 2 * REDRAW_SECONDS
        return seconds[0]

    monkeypatch.setattr("proctor.sdk.pytorch.observers.progress.Progress", lambda: Progress(drawing.make_bar, tick))
    chosen = {"chkpt_frequency": 1, "use_cpu": True, "enable_progress_bar": True, "chkpt_root": root, **options}
    Trainer("run", **chosen).fit(DigitsModel(Recipe()), DigitsData(batch_size=8))
    return drawing.lines


def test_X13_epochs_have_two_bars_and_a_validation_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit(tmp_path, monkeypatch, total_steps=1, valid_frequency=1) == [
        "epochs 0/1",
        "epoch 1 0/3",
        "epoch 1 1",
        "epoch 1 2",
        "epoch 1 3",
        "epoch 1 3",
        "epoch 1 closed",
        "epochs 1",
        "validation 0/2",
        "validation 1",
        "validation 2",
        "validation 2",
        "validation closed",
        "epochs closed",
    ]


def test_X13_iterations_have_one_bar_that_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"train_unit": "iteration"}
    assert fit(tmp_path, monkeypatch, total_steps=4, **options)[:2] == ["iterations 0/4", "iterations 1"]
    lines = fit(tmp_path, monkeypatch, total_steps=5, **options)
    assert lines[0] == "iterations 4/5"
    assert set(lines[1:-1]) == {"iterations 5"}
    assert lines[-1] == "iterations closed"


def test_X13_only_the_main_rank_has_bars_and_only_if_they_are_wanted() -> None:
    wanted = make_settings("run", {"enable_progress_bar": True})
    assert [type(one) for one in make_observers(wanted, is_main=True).all] == [Progress]
    assert make_observers(wanted, is_main=False).all == []
    assert make_observers(make_settings("run", {}), is_main=True).all == []


def test_bars_are_not_drawn_more_often_than_an_eye_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = Drawing()
    monkeypatch.setattr(
        "proctor.sdk.pytorch.observers.progress.Progress", lambda: Progress(drawing.make_bar, lambda: 0.0)
    )
    Trainer("run", total_steps=2, use_cpu=True, enable_progress_bar=True).fit(DigitsModel(), DigitsData(batch_size=4))
    assert [line for line in drawing.lines if line.startswith("epoch 2")] == [
        "epoch 2 0/6",
        "epoch 2 6",
        "epoch 2 closed",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    assert find_bars(io.StringIO()) is NoBar
    bar = NoBar("epochs", 3, 0)
    bar.move(1)
    bar.close()


@pytest.mark.parametrize(("missing", "kind"), [((), TqdmBar), (("tqdm",), RichBar), (("tqdm", "rich"), Line)])
def test_what_is_installed_draws_and_plain_lines_otherwise(
    missing: "tuple[str, ...]", kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "proctor.sdk.pytorch.observers.progress.find_spec", lambda name: None if name in missing else sys
    )
    terminal = Terminal()
    make_bar = find_bars(terminal)
    bars = [make_bar("epochs", 3, 1), make_bar("epoch 2", 5, 0)]
    assert [type(bar) for bar in bars] == [kind, kind]
    for place in (2, 3):
        bars[0].move(place)
    for bar in reversed(bars):
        bar.close()
    written = terminal.getvalue()
    assert "epochs" in written
    assert "3" in written.split("epochs")[-1]
