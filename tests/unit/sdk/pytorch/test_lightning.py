"""What only the callback for Lightning has to do; `test_frameworks.py` has what both callbacks do."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.attempts import begin_attempt
from fakes.frameworks import Lightning, read_reports
from fakes.trained_models import DisturbedDigits

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch import CheckpointWarning, ConfigurationError, DataLoaderParams, seed_rngs
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer
from proctor.sdk.pytorch.errors import UnreadableCheckpointError


@pytest.fixture
def lightning() -> "Iterator[Any]":
    with Lightning().imported() as imported:
        yield imported


def steps(folder: Path) -> "list[int]":
    """What the pointer of a folder names, newest first."""
    return [entry.iteration for entry in read_pointer(folder)]


@pytest.mark.parametrize(
    ("validation", "saved"),
    [
        ({"val_check_batch": 2}, [3, 5, 7, 9]),  # a step later
        ({"val_check_batch": 4, "check_val_every_n_epoch": None}, [2, 5, 7, 9]),  # batches are counted on
        ({"val_check_batch": 1}, [3, 7]),  # everywhere: put off once; the last of an epoch has none
        ({"val_check_batch": 2, "enable_validation": False}, [2, 4, 7, 9]),
    ],
)
def test_a_validation_that_is_due_comes_before_the_checkpoint(
    lightning: Lightning, tmp_path: Path, validation: "dict[str, Any]", saved: "list[int]"
) -> None:
    lightning.cut(tmp_path, kill=10, keep_last=9, trainer=validation)
    assert steps(tmp_path / "lightning")[::-1] == saved


def test_what_a_run_finds_while_it_may_not_leave_yet_is_reported(
    lightning: Lightning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    monkeypatch.setattr(sdk, "should_stop", lambda: True)
    assert len(lightning.fit(tmp_path / "root", trainer={"min_steps": 8}).samples) == 8
    assert [step for step, _ in read_reports(tmp_path / "job")] == [6]


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(lightning: Lightning, tmp_path: Path) -> None:
    whole = lightning.fit(tmp_path / "whole")
    lightning.cut(tmp_path / "cut", kill=6)
    newest, before = (tmp_path / "cut" / "lightning" / f"step-{step}.ckpt" for step in (4, 2))
    whole_bytes = newest.read_bytes()
    newest.write_bytes(b"")
    before.write_bytes(before.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning), pytest.raises(UnreadableCheckpointError, match="none of the 2 checkpoints"):
        lightning.fit(tmp_path / "cut")  # it does not begin anew in silence
    before.write_bytes(before.read_bytes() + b"\0")
    newest.write_bytes(whole_bytes[:-1])
    with pytest.warns(CheckpointWarning, match="step-4.ckpt is not what was stored"):
        assert lightning.fit(tmp_path / "cut").hash() == whole.hash()


def test_a_copy_of_the_newest_checkpoint_stands_in_for_it_if_it_is_torn(
    lightning: Lightning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    lightning.cut(tmp_path, kill=6)
    (tmp_path / "t" / "lightning" / "step-4.ckpt").write_bytes(b"torn")
    assert len(lightning.fit(tmp_path).samples) == 14


def test_what_a_kill_has_left_half_written_is_removed(lightning: Lightning, tmp_path: Path) -> None:
    (tmp_path / "lightning").mkdir()
    for name in (".unfinished-step-2.ckpt", "step-90.ckpt", "step-90-best.ckpt"):
        (tmp_path / "lightning" / name).touch()
    lightning.fit(tmp_path)
    lightning.cut(tmp_path, kill=4, anew=True)
    assert sorted(path.name for path in (tmp_path / "lightning").iterdir()) == [
        "latest.json",
        "step-17.ckpt",
        "step-2.ckpt",
        "step-90-best.ckpt",
    ]
    assert steps(tmp_path / "lightning") == [2, 17]


class Odd:
    """Nothing that is loaded without running code."""


def test_a_first_checkpoint_that_no_run_could_load_is_told(lightning: Lightning, tmp_path: Path) -> None:
    callback = lightning.ours.ProctorCallback(tmp_path, every_n_steps=1)
    trainer = SimpleNamespace(
        is_global_zero=True, save_checkpoint=lambda path, weights_only: torch.save({"odd": Odd()}, path)
    )
    with pytest.warns(CheckpointWarning, match=r"could not continue .*Odd was not an allowed"):
        callback._save(trainer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback._save(trainer)  # once


@pytest.mark.parametrize(("interval", "count"), [("step", 1), ("epoch", 0)])
def test_a_plateau_that_misses_a_step_is_told(lightning: Lightning, tmp_path: Path, interval: str, count: int) -> None:
    trainer = {"lr_scheduler_configs": [SimpleNamespace(reduce_on_plateau=True, interval=interval, scheduler=None)]}
    lightning.cut(tmp_path, kill=4, trainer=trainer)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        lightning.fit(tmp_path, trainer=trainer)
    assert [str(each.message) for each in reported] == ["not exact: plateaus by steps was 'kept', is 'lost'"] * count


def test_the_loaders_of_a_tree_are_all_described(lightning: Lightning) -> None:
    ours = lightning.ours
    loaders = [ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=size)) for size in (2, 4)]
    found = ours.describe_loaders({"a": loaders[0], "b": [loaders[1]]})
    assert found is not None
    assert {name: facts["batch size"] for name, facts in found.items()} == {
        "training 0 of loader a": 2,
        "training 0 of loader 0 of loader b": 4,
    }
    assert ours.describe_loaders({"a": loaders[0], "b": object()}) is None


@pytest.mark.parametrize("options", [{"run_name": "a/b"}, {"keep_last": 0}, {"every_n_steps": 0}])
def test_an_option_out_of_its_range_is_refused(lightning: Lightning, tmp_path: Path, options: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))} .*found"):
        lightning.ours.ProctorCallback(tmp_path, **{"every_n_steps": 1, **options})


def test_an_epoch_that_was_left_early_is_not_gone_on_with(lightning: Lightning) -> None:
    seed_rngs(5)
    loader = lightning.ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=4), seed=5)
    next(iter(loader))
    epoch = [batch[2].tolist() for batch in loader]
    assert epoch[0] == [0, 1, 2, 3]
    assert loader.state_dict()["epoch"] == 2
