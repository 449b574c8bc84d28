"""The callback and the loader for Lightning, in its order of calls."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.frameworks import Killed, LightningTrainer, Training, imported_with
from fakes.trained_models import DisturbedDigits

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch import DataLoaderParams, NotExactError, seed_rngs

OURS = "proctor.sdk.pytorch.lightning"


@pytest.fixture
def ours() -> Iterator[Any]:
    with imported_with("lightning.pytorch", "Callback", OURS) as module:
        yield module


def fit(ours: Any, root: Path, *, kill: int = 0, accumulate: int = 1, batch_size: int = 4, **options: Any) -> Training:
    seed_rngs(5)
    training = Training(kill)
    callback = ours.ProctorCallback(root, every_n_steps=2, metric="loss", **options)
    loader = ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=batch_size, shuffle=True), seed=5)
    LightningTrainer(training, callback, accumulate=accumulate).fit(loader, callback.find_checkpoint())
    return training


@pytest.mark.parametrize(("kill", "accumulate"), [(4, 1), (6, 1), (8, 1), (15, 1), (8, 2)])
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    ours: Any, tmp_path: Path, kill: int, accumulate: int
) -> None:
    whole = fit(ours, tmp_path / "whole", accumulate=accumulate)
    with pytest.raises(Killed):
        fit(ours, tmp_path / "cut", kill=kill, accumulate=accumulate)
    resumed = fit(ours, tmp_path / "cut", accumulate=accumulate)
    assert resumed.hash() == whole.hash()
    assert 0 < len(resumed.samples) < len(whole.samples)
    assert resumed.samples == whole.samples[-len(resumed.samples) :]
    assert len(list((tmp_path / "cut").iterdir())) == 2


def test_a_trial_is_told_of_checkpoints_and_metrics_and_ends_when_it_is_asked_to(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(ours, tmp_path / "whole")
    registered: list[int] = []
    reports: list[Any] = []
    monkeypatch.setattr(ours, "is_in_trial", lambda: True)
    monkeypatch.setattr(sdk, "get_trial_id", lambda: "aB3xYz")
    monkeypatch.setattr(sdk, "should_stop", lambda: bool(reports))  # in the second epoch
    monkeypatch.setattr(sdk, "report", lambda metrics, step: reports.append((step, sorted(metrics))))
    monkeypatch.setattr(sdk, "save_checkpoint", lambda folder, step: registered.append(step))
    stopped = fit(ours, tmp_path / "cut")
    assert len(stopped.samples) == 7
    assert reports == [(6, ["default", "loss"])]
    assert registered == [2, 4, 7]
    assert sorted(path.name for path in (tmp_path / "cut" / "aB3xYz").iterdir()) == ["step-4.ckpt", "step-7.ckpt"]
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    assert fit(ours, tmp_path / "cut").hash() == whole.hash()


def test_what_is_not_exact_is_refused_if_that_is_wanted(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4)
    with pytest.raises(NotExactError, match="batch size of training 0 was 4, is 2"):
        fit(ours, tmp_path, batch_size=2, strict_resume=True)


def test_an_epoch_that_was_left_early_is_not_gone_on_with(ours: Any) -> None:
    seed_rngs(5)
    loader = ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=4), seed=5)
    next(iter(loader))
    epoch = [batch[2].tolist() for batch in loader]
    assert epoch[0] == [0, 1, 2, 3]
    assert loader.state_dict()["epoch"] == 2


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'proctor\[lightning\]'"):
        __import__(OURS)
