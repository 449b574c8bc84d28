"""What `fit` and `test` raise, return, seed and restore."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.attempts import begin_attempt
from fakes.frameworks import read_reports
from fakes.recording_model import RangeData, RecordingModel
from fakes.trained_models import DigitsData, DigitsModel, hash_state

from proctor.sdk.files import hash_file
from proctor.sdk.pytorch import (
    ConfigurationError,
    DataModule,
    Model,
    Trainer,
    get_default_numpy_rng,
    read_history,
    seed_rngs,
)
from proctor.sdk.pytorch.callbacks.base import Callbacks
from proctor.sdk.pytorch.config import Settings
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.loop import fit as run_fit
from proctor.sdk.pytorch.loop import make_callbacks
from proctor.sdk.pytorch.loop import test as run_test
from proctor.sdk.pytorch.reproducibility.seeding import get_rng_state_dict
from proctor.sdk.pytorch.run import Place, Run


class NoLuck(Exception):
    """What a model raises."""


def make_run(settings: Settings, model: Model, data: DataModule, ranks: Ranks) -> Run:
    """A run without plug-ins, as the trainer makes it on each rank."""
    callbacks = make_callbacks(settings, Callbacks(), is_main=ranks.is_main)
    return Run(settings, model, datamodule=data, callbacks=callbacks, place=Place(torch.device("cpu"), ranks))


class Raising(RecordingModel):
    def __init__(self, problem: BaseException) -> None:
        super().__init__()
        self.problem = problem

    def train_step(self, batch: Any, state: Any) -> None:
        raise self.problem

    def test_step(self, batch: Any, step: int) -> None:
        raise self.problem


@pytest.mark.parametrize(
    ("work", "options", "problem", "told"),
    [
        ("fit", {"test_exceptions": [NoLuck]}, NoLuck("not today"), "NoLuck: not today"),
        ("test", {"train_exceptions": [NoLuck]}, NoLuck("not today"), "NoLuck: not today"),
        ("fit", {}, SystemExit(0), "SystemExit: 0"),
        ("test", {}, SystemExit(0), "SystemExit: 0"),
    ],
)
def test_X7_a_failure_is_raised_with_its_cause_and_never_returned(
    work: str, options: "dict[str, Any]", problem: BaseException, told: str
) -> None:
    with pytest.raises(RuntimeError, match=f"{work} of run unlucky failed: {told}") as caught:
        getattr(Trainer("unlucky", total_steps=1, use_cpu=True, **options), work)(Raising(problem), RangeData(1))
    assert caught.value.__cause__ is problem


@pytest.mark.parametrize(
    ("work", "options", "problem"),
    [
        ("fit", {"train_exceptions": [NoLuck]}, NoLuck()),
        ("test", {"test_exceptions": [NoLuck]}, NoLuck()),
        ("fit", {}, KeyboardInterrupt()),
    ],
)
def test_X7_exceptions_that_are_named_and_ctrl_c_pass_as_they_are(
    work: str, options: "dict[str, Any]", problem: BaseException
) -> None:
    with pytest.raises(type(problem)):
        getattr(Trainer("run", total_steps=1, use_cpu=True, **options), work)(Raising(problem), RangeData(1))


def test_X7_exceptions_may_be_added_as_in_helios() -> None:
    trainer = Trainer("run", total_steps=1, use_cpu=True)
    trainer.train_exceptions.append(NoLuck)
    trainer.test_exceptions.append(NoLuck)
    for work in (trainer.fit, trainer.test):
        with pytest.raises(NoLuck):
            work(Raising(NoLuck()), RangeData(1))


@pytest.mark.parametrize(
    ("model", "data", "told"),
    [
        (RecordingModel, RangeData(), r"model must be an object .* Make one: RecordingModel\(…\)"),
        (None, RangeData(), "model must be an object of a class that derives from Model; found None"),
        (RecordingModel(), [1, 2], r"data module must be an object .* DataModule; found \[1, 2\]"),
    ],
)
def test_what_is_no_model_or_no_data_module_is_named(model: Any, data: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Trainer("run", total_steps=1, use_cpu=True).fit(model, data)


def test_a_root_that_is_no_folder_is_named(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.write_text("a file")
    trainer = Trainer("run", total_steps=1, use_cpu=True, chkpt_root=checkpoints)
    with pytest.raises(ConfigurationError, match=f"chkpt_root must be a folder .*{checkpoints / 'run'}"):
        trainer.fit(RecordingModel(), RangeData())


def test_S3_weights_made_in_setup_are_the_same_whatever_was_drawn_before() -> None:
    hashes = []
    for draws in (0, 3):
        torch.rand(draws)
        model = DigitsModel()
        Trainer("run", use_cpu=True).test(model, DigitsData())
        hashes.append(hash_state(model.net.state_dict()))
    assert hashes[0] == hashes[1]


def test_S11_a_test_does_not_depend_on_how_long_the_training_took(tmp_path: Path) -> None:
    class Noisy(DigitsModel):
        drawn: "list[float]"

        def test_step(self, batch: Any, step: int) -> None:
            self.drawn = [*getattr(self, "drawn", []), float(torch.rand(1))]

    found = []
    for epochs in (1, 2):
        trainer = Trainer(f"run{epochs}", total_steps=epochs, chkpt_root=tmp_path, use_cpu=True)
        trainer.fit(DigitsModel(), DigitsData())
        model = Noisy()
        outcome = trainer.test(model, DigitsData())
        assert outcome.state.epoch == epochs
        found.append(model.drawn)
    assert found[0] == found[1]


def test_C6_a_model_of_other_parts_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    class Grown(DigitsModel):
        def setup(self) -> None:
            super().setup()
            self.extra = torch.nn.Linear(1, 1)

    trainer = Trainer("run", total_steps=1, chkpt_root=tmp_path, use_cpu=True)
    trainer.fit(DigitsModel(), DigitsData())
    with pytest.raises(ConfigurationError, match="'extra'"):
        trainer.fit(Grown(), DigitsData())


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("abc", "'abc'"),
        (None, "None"),
        (torch.zeros(2), r"a tensor of shape \(2,\)"),
        (torch.zeros(0), r"a tensor of shape \(0,\)"),
        (numpy.zeros(2), r"array\(\[0., 0.\]\)"),
        ([1], r"\[1\]"),
    ],
)
def test_a_metric_that_is_no_number_is_named_and_leaves_no_row(value: Any, found: str, tmp_path: Path) -> None:
    class Logging(RecordingModel):
        def train_step(self, batch: Any, state: Any) -> None:
            self.log({"fine": torch.ones(1, 1), "odd": value})

    told = f"metric 'odd' must be a number or a tensor of one element; found {found}"
    with pytest.raises(RuntimeError, match=told):
        Trainer("run", total_steps=1, chkpt_root=tmp_path, use_cpu=True).fit(Logging(), RangeData(1))
    assert not (tmp_path / "run" / "history.jsonl").exists()


def test_a_tensor_of_one_element_is_kept_to_the_last_bit(tmp_path: Path) -> None:
    class Logging(RecordingModel):
        def train_step(self, batch: Any, state: Any) -> None:
            self.log({"tensor": torch.tensor([0.1]), "flag": True})

    Trainer("run", total_steps=1, chkpt_root=tmp_path, use_cpu=True).fit(Logging(), RangeData(1))
    (row,) = read_history(tmp_path / "run" / "history.jsonl")
    assert row["metrics"] == {"tensor": torch.tensor(0.1).item(), "flag": 1.0}


def test_what_a_test_measures_is_in_its_outcome_and_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tested(RecordingModel):
        def train_step(self, batch: Any, state: Any) -> None:
            self.log({"score": 1})

        def test_step(self, batch: Any, step: int) -> None:
            self.log({"score": 2})

    begin_attempt(monkeypatch, tmp_path / "job")
    trainer = Trainer("run", total_steps=1, best_metric="score", use_cpu=True)
    trainer.fit(Tested(), RangeData(1))
    outcome = trainer.test(Tested(), RangeData(1))
    assert outcome.metrics == {"score": 2.0}
    assert read_reports(tmp_path / "job") == [(1, ["default", "score"])]


class OneOf(Ranks):
    """One of several ranks, alone: nothing is exchanged."""

    def __init__(
        self, rank: int, world_size: int, streams: "list[Any] | None" = None, checkpoint: "Path | None" = None
    ) -> None:
        self.rank, self.world_size, self.streams = rank, world_size, streams
        self.told: list[Any] = []  # what the main rank says, the first last
        if checkpoint is not None:
            self.told = [(checkpoint.stat().st_size, hash_file(checkpoint)), checkpoint]

    def gather(self, value: Any) -> "list[Any] | None":
        if not self.is_main:
            return None
        if not isinstance(value, dict) or "rng" not in value:
            return [value] * self.world_size
        return [{**value, "rng": streams} for streams in self.streams or [value["rng"]] * self.world_size]

    def broadcast(self, value: Any) -> Any:
        return self.told.pop() if self.told and value is None else value


def draw_on(rank: int, world_size: int = 3, **options: Any) -> "tuple[list[float], str]":
    """What a rank draws in its first batch, and the weights that it begins with."""
    seen: list[tuple[list[float], str]] = []

    class Drawing(DigitsModel):
        def setup(self) -> None:
            self.net = torch.nn.Linear(2, 2)

        def train_step(self, batch: Any, state: Any) -> None:
            seen.append(([float(torch.rand(1))], hash_state(self.net.state_dict())))

    settings = Trainer("run", total_steps=1, use_cpu=True, **options).settings
    run_fit(make_run(settings, Drawing(), DigitsData(), OneOf(rank, world_size)))
    return seen[0]


def test_S8_ranks_begin_with_the_same_weights_and_draw_on_their_own() -> None:
    found = [draw_on(rank) for rank in range(3)]
    assert len({weights for _, weights in found}) == 1
    assert len({draws[0] for draws, _ in found}) == 3
    assert [draw_on(rank) for rank in range(3)] == found
    assert draw_on(1, random_seed=1)[0] != found[1][0]


def test_S8_ranks_draw_on_their_own_in_a_test_too() -> None:
    def draw(rank: int) -> "list[float]":
        """What a rank draws in its first batch, from whichever stream and wherever it is known from."""
        drawn: list[float] = []

        class Drawing(RecordingModel):
            def setup(self) -> None:
                self.kept = get_default_numpy_rng().generator

            def test_step(self, batch: Any, step: int) -> None:
                drawn.extend([float(torch.rand(1)), random.random(), float(self.kept.random())])
                assert self.kept is get_default_numpy_rng().generator

        settings = Trainer("run", use_cpu=True).settings
        run_test(make_run(settings, Drawing(), RangeData(1, valid=3), OneOf(rank, 3)), None)
        return drawn

    found = [draw(rank) for rank in range(3)]
    assert [len(set(drawn)) for drawn in zip(*found, strict=True)] == [3, 3, 3]
    assert [draw(rank) for rank in range(3)] == found


def draw_after_a_resume(root: Path, before: Ranks, *after: "Callable[[Path], Ranks]") -> "list[float]":
    """Train for a batch, and return what each of the ranks of the next start draws in its second one."""
    settings = Trainer("run", total_steps=2, chkpt_root=root, use_cpu=True).settings
    found: list[float] = []
    run_fit(make_run(settings, RecordingModel(stop_after=1), RangeData(4), before))
    newest = next((root / "run").glob("*.pth"))
    for make_ranks in after:
        model = RecordingModel(on_batch=lambda state: found.append(float(torch.rand(1))), stop_after=2)
        run_fit(make_run(settings, model, RangeData(4), make_ranks(newest)))
    return found


def test_S8_ranks_that_are_new_after_a_resume_draw_on_their_own(tmp_path: Path) -> None:
    new = [partial(OneOf, rank, 3, None) for rank in (1, 2)]
    assert len({*draw_after_a_resume(tmp_path, OneOf(0, 1), *new)}) == 2


def test_S7_each_rank_gets_its_own_streams_back(tmp_path: Path) -> None:
    streams, expected = [], []
    for rank in range(2):
        seed_rngs(100 + rank)
        streams.append(get_rng_state_dict())
        expected.append(float(torch.rand(1)))
    again = (partial(OneOf, 1, 2, streams), lambda newest: OneOf(0, 2, streams))  # the main rank last: it then writes
    assert draw_after_a_resume(tmp_path, OneOf(0, 2, streams), *again) == expected[::-1]
    content = torch.load(next((tmp_path / "run").glob("*.pth")), weights_only=True)
    assert [hash_state(state) for state in content["rng"]] == [hash_state(state) for state in streams]
