"""The bars of a run (row X13)."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trained_models import DigitsData, DigitsModel, Recipe

from proctor.sdk.pytorch import Model, Trainer, TrainingState
from proctor.sdk.pytorch.callbacks.base import Callbacks
from proctor.sdk.pytorch.callbacks.progress import (
    Progress,
    ProgressLines,
    choose_progress,
    make_bar,
)
from proctor.sdk.pytorch.config import make_settings
from proctor.sdk.pytorch.loop import make_callbacks


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
    drawing = Drawing()
    monkeypatch.setattr("proctor.sdk.pytorch.loop.choose_progress", lambda *given: Progress(drawing.make_bar))
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
        "epoch 1 closed",
        "epochs 1",
        "validation 0/2",
        "validation 1",
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


def test_X13_only_the_main_rank_shows_progress_and_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, kind in ((Terminal(), Progress), (io.StringIO(), ProgressLines)):
        monkeypatch.setattr(sys, "stderr", terminal)
        for wanted in (None, True):
            settings = make_settings("run", {"enable_progress_bar": wanted})
            assert [type(one) for one in make_callbacks(settings, Callbacks(), is_main=True).logs] == [kind]
            assert make_callbacks(settings, Callbacks(), is_main=False).logs == []
        assert (
            make_callbacks(make_settings("run", {"enable_progress_bar": False}), Callbacks(), is_main=True).logs == []
        )
    monkeypatch.setattr(sys, "stderr", None)  # as in a process without a console
    assert make_callbacks(make_settings("run", {}), Callbacks(), is_main=True).logs == []


def test_a_trial_shows_no_progress_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.progress.is_in_trial", lambda: True)
    assert choose_progress(make_settings("run", {}), io.StringIO()) is None
    assert choose_progress(make_settings("run", {"enable_progress_bar": True}), io.StringIO()) is not None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tqdm_draws() -> None:
    terminal = Terminal()
    bars = [make_bar(terminal, "epochs", 3, 1), make_bar(terminal, "epoch 2", 5, 0)]
    for place in (2, 3):
        bars[0].move(place)
    for bar in reversed(bars):
        bar.close()
    written = terminal.getvalue()
    assert "epochs" in written
    assert "3/3" in written.split("epochs")[-1]


def test_bars_are_not_drawn_more_often_than_an_eye_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, count in ((3600.0, 1), (0.0, 1001)):
        monkeypatch.setattr("proctor.sdk.pytorch.callbacks.progress.REDRAW_SECONDS", seconds)
        terminal = Terminal()
        bar = make_bar(terminal, "iterations", 1000, 0)
        for place in range(1, 1001):
            bar.move(place)
        assert terminal.getvalue().count("iterations") == count
        bar.close()
        assert "1000/1000" in terminal.getvalue()


def test_a_terminal_without_anything_that_draws_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.callbacks.progress.find_spec", lambda name: None)
    assert type(choose_progress(make_settings("run", {}), Terminal())) is ProgressLines


def test_a_terminal_that_does_not_know_its_width_gets_lines() -> None:
    for columns, kind in ((0, ProgressLines), (80, Progress)):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 0, columns, 0, 0))
        with open(slave, "w") as terminal:
            assert type(choose_progress(make_settings("run", {}), terminal)) is kind
        os.close(master)


class Clocked:
    """Lines of a run whose batches and validation batches take a time that is given.

    :param seconds: for each training batch.
    """

    def __init__(self, seconds: float, stream: "io.StringIO | None" = None) -> None:
        self.seconds = seconds
        self.now = 1000.0
        self.stream = stream or io.StringIO()

    def fit(self, monkeypatch: pytest.MonkeyPatch, *, test: bool = False, **options: Any) -> "list[str]":
        """Train or test, and return what was written, without its beginning."""
        monkeypatch.setattr("proctor.sdk.pytorch.loop.choose_progress", self.choose)
        trainer = Trainer("run", use_cpu=True, **options)
        if test:
            trainer.test(Passing(self), DigitsData(batch_size=8))
        else:
            trainer.fit(Passing(self), DigitsData(batch_size=8))
        return [line.removeprefix("proctor: run run: ") for line in self.stream.getvalue().splitlines()]

    def choose(self, settings: Any, stream: Any) -> ProgressLines:
        return ProgressLines(settings, self.stream, lambda: self.now)


class Passing(Model):
    """Learns nothing and lets time pass."""

    def __init__(self, clocked: Clocked) -> None:
        self.clocked = clocked

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.clocked.now += self.clocked.seconds

    def valid_step(self, batch: Any, step: int) -> None:
        self.clocked.now += self.clocked.seconds

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"accuracy": 0.5 + validation_cycle / 100, "loss": 1 / 3})

    test_step = valid_step

    def on_testing_end(self) -> None:
        self.log({"accuracy": 0.25})


def test_a_log_has_a_line_for_an_epoch_with_its_validation_and_one_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Clocked(1.0).fit(monkeypatch, total_steps=3, valid_frequency=1) == [
        "epoch 1 of 3, 0.6 batches/s; accuracy 0.5, loss 0.3333",
        "epoch 2 of 3, 0.6 batches/s; accuracy 0.51, loss 0.3333",
        "completed: epoch 3 of 3, in 15 s, 0.6 batches/s; accuracy 0.52, loss 0.3333",
    ]


def test_short_epochs_have_no_line_each_and_long_ones_some_within(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Clocked(1.0).fit(monkeypatch, total_steps=5) == [
        "epoch 2 of 5, 1 batches/s",
        "epoch 4 of 5, 1 batches/s",
        "completed: epoch 5 of 5, in 15 s, 1 batches/s",
    ]
    assert Clocked(20.0).fit(monkeypatch, total_steps=1, valid_frequency=1) == [
        "epoch 1 of 1, batch 2 of 3, 0.05 batches/s",
        "validation, batch 1 of 2, 0.025 batches/s",
        "completed: epoch 1 of 1, in 100 s; accuracy 0.5, loss 0.3333",
    ]


def test_a_slow_start_does_not_count_as_time_since_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Passing):
        transient = ("clocked",)

        def setup(self) -> None:
            self.clocked.now += 60.0

    monkeypatch.setattr(sys.modules[__name__], "Passing", Slow)
    options: dict[str, Any] = {"chkpt_root": tmp_path, "chkpt_frequency": 1}
    Clocked(1.0).fit(monkeypatch, total_steps=1, **options)
    assert Clocked(1.0).fit(monkeypatch, total_steps=3, **options) == [
        "completed: epoch 3 of 3, in 66 s, 1 batches/s",
    ]


def test_steps_and_tests_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Clocked(16.0).fit(monkeypatch, total_steps=4, train_unit="iteration") == [
        "step 2 of 4, 0.0625 batches/s",
        "step 3 of 4, 0.0625 batches/s",
        "completed: step 4 of 4, in 64 s, 0.0625 batches/s",
    ]
    assert Clocked(1.0).fit(monkeypatch, test=True) == ["tested, 2 batches; accuracy 0.25"]


@pytest.mark.slow
def test_the_lines_of_a_long_run_become_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Clocked(600.0).fit(monkeypatch, total_steps=300)
    assert 100 < len(lines) < 460  # not one for each of 900 batches


def test_a_log_that_cannot_be_written_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    assert Clocked(1.0, Full()).fit(monkeypatch, total_steps=3) == []


def test_what_shows_progress_leaves_no_trace_in_a_checkpoint(tmp_path: Path) -> None:
    found = []
    for shows in (True, False):
        options: dict[str, Any] = {"enable_progress_bar": shows, "chkpt_root": tmp_path / str(shows), "use_cpu": True}
        outcome = Trainer("run", total_steps=1, **options).fit(DigitsModel(), DigitsData())
        found.append(torch.load(str(outcome.checkpoint), weights_only=True)["observers"])
    assert found == [{}, {}]
