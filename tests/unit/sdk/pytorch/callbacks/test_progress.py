"""What a run shows of itself (row X13)."""

import fcntl
import io
import math
import os
import pty
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import Model, Trainer, TrainingState
from proctor.sdk.pytorch.callbacks.base import Callbacks
from proctor.sdk.pytorch.callbacks.progress import (
    Progress,
    choose_progress,
)
from proctor.sdk.pytorch.config import make_settings
from proctor.sdk.pytorch.loop import make_callbacks


def test_X13_only_the_main_rank_shows_progress_and_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        for wanted in (None, True):
            settings = make_settings("run", {"enable_progress_bar": wanted})
            assert [type(one) for one in make_callbacks(settings, Callbacks(), is_main=True).logs] == [Progress]
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


def redrawn(written: str) -> "list[str]":
    """The lines that stood in the place of one; one that stayed ends with a line break."""
    assert all(line.endswith(("\x1b[K", "\x1b[K\n")) for line in written.split("\r")[1:])
    return [line.replace("\x1b[K", "") for line in written.split("\r")[1:]]


def test_X13_a_terminal_has_one_line_with_a_bar_that_is_redrawn_and_one_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = Clocked(1.0, Terminal())
    clocked.fit(monkeypatch, total_steps=2, valid_frequency=1)
    assert redrawn(clocked.stream.getvalue()) == [
        "run: [#---------] 0:00:05 left, epoch 1 of 2, batch 1 of 3, 1 batches/s",
        "run: [###-------] 0:00:04 left, epoch 1 of 2, batch 2 of 3, 1 batches/s",
        "run: [#####-----] 0:00:03 left, epoch 1 of 2, batch 3 of 3, 1 batches/s",
        "run: [#####-----] 0:00:04 left, validation, batch 1 of 2, 0.75 batches/s",
        "run: [#####-----] 0:00:05 left, validation, batch 2 of 2, 0.6 batches/s",
        "run: [######----] 0:00:03 left, epoch 2 of 2, batch 1 of 3, 0.667 batches/s; ac",
        "run: [########--] 0:00:01 left, epoch 2 of 2, batch 2 of 3, 0.714 batches/s; ac",
        "run: [##########] 0:00:00 left, epoch 2 of 2, batch 3 of 3, 0.75 batches/s; acc",
        "run: [##########] 0:00:00 left, validation, batch 1 of 2, 0.667 batches/s; accu",
        "run: [##########] 0:00:00 left, validation, batch 2 of 2, 0.6 batches/s; accura",
        "proctor: run run: completed: epoch 2 of 2, in 10 s, 0.6 batches/s; accuracy 0.51, loss 0.3333\n",
    ]


@pytest.mark.parametrize(("steps", "columns"), [(3, 20), (math.inf, 20), (3, 0)])
def test_X13_a_line_that_is_redrawn_fits_the_terminal_and_stays_when_the_run_fails(steps: float, columns: int) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 0, columns, 0, 0))
    with open(slave, "w") as terminal:
        settings = make_settings("run", {"total_steps": steps, "train_unit": "iteration"})
        now = iter([100.0, 100.0, 100.0, *[102.0] * 9])
        progress = Progress(settings, terminal, lambda: next(now))
        progress._due = 0.0
        progress._state.current_iteration = progress._state.global_iteration = 1
        progress.on_training_batch_end(progress._state)
        progress.close()
    written = ""
    with suppress(OSError):  # at the end
        while part := os.read(master, 1000):
            written += part.decode()
    os.close(master)
    if columns == 0:  # a program has made it, and no line could be redrawn
        assert written == "proctor: run run: step 1 of 3, 0.5 batches/s\r\n"
    else:
        shown = "run: step 1, 0.5 ba" if math.isinf(steps) else "run: [###-------] 0"
        assert written == f"\r{shown}\x1b[K\r\n"


def test_bars_are_not_drawn_more_often_than_an_eye_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, count in ((1.0, 900), (0.01, 90)):
        clocked = Clocked(seconds, Terminal())
        clocked.fit(monkeypatch, total_steps=300)
        assert abs(len(redrawn(clocked.stream.getvalue())) - count) < 10


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

    def choose(self, settings: Any, stream: Any) -> Progress:
        return Progress(settings, self.stream, lambda: self.now)


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
