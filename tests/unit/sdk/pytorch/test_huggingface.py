"""The callback for the Trainer of transformers, in its order of calls."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.frameworks import Killed, Training, TransformersTrainer, imported_with
from fakes.trained_models import DisturbedDigits

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch import DataLoaderParams, DataModule, NotExactError, seed_rngs
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.ranks import Ranks

OURS = "proctor.sdk.pytorch.huggingface"


@pytest.fixture
def ours() -> Iterator[Any]:
    with imported_with("transformers", "TrainerCallback", OURS) as module:
        yield module


def fit(ours: Any, output: Path, *, kill: int = 0, seed: int = 5, strict: bool = False) -> Training:
    seed_rngs(5)
    data = DataModule()
    data.bind(5, Ranks())
    data.add_train_phase(DisturbedDigits(), DataLoaderParams(batch_size=4))
    batches = list(data.open(Phase.TRAINING)) * 2
    training = Training(kill)
    callback = ours.ProctorCallback("loss", strict_resume=strict)
    trainer = TransformersTrainer(training, callback, output, seed=seed)
    trainer.train(batches, callback.find_checkpoint(output))
    return training


@pytest.mark.parametrize("kill", [1, 4, 7])
def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint(ours: Any, tmp_path: Path, kill: int) -> None:
    whole = fit(ours, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(ours, tmp_path / "cut", kill=kill)
    (tmp_path / "cut" / "checkpoint-98").mkdir(parents=True)  # one that a kill has torn
    resumed = fit(ours, tmp_path / "cut")
    assert resumed.hash() == whole.hash()
    assert len(resumed.samples) == 12 - (kill - 1) // 2 * 2


def test_a_trial_is_told_of_checkpoints_and_metrics_and_ends_when_it_is_asked_to(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[str] = []
    reports: list[Any] = []
    monkeypatch.setattr(ours, "is_in_trial", lambda: True)
    monkeypatch.setattr(sdk, "get_checkpoint", lambda: registered[-1] if registered else None)
    monkeypatch.setattr(sdk, "should_stop", lambda: len(reports) == 2)
    monkeypatch.setattr(sdk, "report", lambda metrics, step: reports.append((step, sorted(metrics))))
    monkeypatch.setattr(sdk, "save_checkpoint", lambda folder, step: registered.append(str(folder)))
    assert len(fit(ours, tmp_path).samples) == 3
    assert reports == [(step, ["default", "loss"]) for step in (1, 2, 3)]
    assert registered == [str(tmp_path / "checkpoint-2"), str(tmp_path / "checkpoint-3")]
    assert len(fit(ours, tmp_path).samples) == 9


def test_what_is_not_exact_is_refused_if_that_is_wanted(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4)
    with pytest.raises(NotExactError, match="seed was 5, is 6"):
        fit(ours, tmp_path, seed=6, strict=True)


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'proctor\[huggingface\]'"):
        __import__(OURS)
