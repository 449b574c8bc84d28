"""The callback and the loader for Lightning, in its order of calls."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.frameworks import Killed, LightningTrainer, Training, cut_before_registration, imported_with, read_reports
from fakes.trained_models import DisturbedDigits

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints.saving import find_newest_checkpoint, list_checkpoints
from proctor.sdk.pytorch import (
    CheckpointWarning,
    ConfigurationError,
    DataLoaderParams,
    NotExactError,
    NotExactWarning,
    seed_rngs,
)
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer
from proctor.sdk.pytorch.errors import UnreadableCheckpointError
from proctor.sdk.pytorch.trial import list_registered_runs

OURS = "proctor.sdk.pytorch.lightning"


@pytest.fixture
def ours() -> Iterator[Any]:
    with imported_with("lightning.pytorch", "Callback", OURS) as module:
        yield module


def fit(
    ours: Any,
    root: Path,
    *,
    kill: int = 0,
    accumulate: int = 1,
    batch_size: int = 4,
    seed: int = 5,
    anew: bool = False,
    plain: bool = False,
    rate: float = 0.01,
    trainer: "dict[str, Any] | None" = None,
    **options: Any,
) -> Training:
    seed_rngs(seed)
    training = Training(kill, rate)
    callback = ours.ProctorCallback(root, every_n_steps=2, metric="loss", **options)
    loader = ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=batch_size, shuffle=True), seed=seed)
    lightning = LightningTrainer(training, callback, accumulate=accumulate)
    vars(lightning).update(trainer or {})
    lightning.fit(loader, None if anew else callback.find_checkpoint(), shown_loader=object() if plain else None)
    return training


def steps(folder: Path) -> "list[int]":
    """What the pointer of a folder names, newest first."""
    return [entry.iteration for entry in read_pointer(folder) or []]


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
    assert len(list((tmp_path / "cut" / "lightning").glob("*.ckpt"))) == 2


def test_a_trial_is_told_of_checkpoints_and_metrics_and_ends_when_it_is_asked_to(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(ours, tmp_path / "whole")
    job = tmp_path / "job"
    begin_attempt(monkeypatch, job, trial="aB3xYz")
    monkeypatch.setattr(sdk, "should_stop", lambda: bool(read_reports(job)))  # in the second epoch
    stopped = fit(ours, tmp_path / "cut")
    assert len(stopped.samples) == 7
    assert read_reports(job) == [(6, ["default", "loss"])]
    assert [steps(Path(path)) for path in list_checkpoints(str(job))] == [[2], [4], [7]]
    assert steps(tmp_path / "cut" / "aB3xYz" / "lightning") == [7, 4]
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    assert fit(ours, tmp_path / "cut").hash() == whole.hash()


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
    ours: Any, tmp_path: Path, validation: "dict[str, Any]", saved: "list[int]"
) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=10, keep_last=9, trainer=validation)
    assert steps(tmp_path / "lightning")[::-1] == saved


def test_a_run_that_draws_in_its_validations_is_exact(ours: Any, tmp_path: Path) -> None:
    validation = {"val_check_batch": 2}
    whole = fit(ours, tmp_path / "whole", trainer=validation)
    with pytest.raises(Killed):
        fit(ours, tmp_path / "cut", kill=6, trainer=validation)
    resumed = fit(ours, tmp_path / "cut", trainer=validation)
    assert resumed.hash() == whole.hash()
    assert len(resumed.samples) < len(whole.samples)


def test_what_a_run_finds_while_it_may_not_leave_yet_is_reported(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    monkeypatch.setattr(sdk, "should_stop", lambda: True)
    assert len(fit(ours, tmp_path / "root", trainer={"min_steps": 8}).samples) == 8
    assert [step for step, _ in read_reports(tmp_path / "job")] == [6]


def test_a_retry_elsewhere_gives_every_run_of_the_trial_its_own_checkpoint_back(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [fit(ours, tmp_path / "whole", run_name=f"fold{seed}", seed=seed).hash() for seed in range(2)]
    begin_attempt(monkeypatch, tmp_path / "first")
    fit(ours, tmp_path / "one", run_name="fold0", seed=0)
    with pytest.raises(Killed):
        fit(ours, tmp_path / "one", run_name="fold1", seed=1, kill=4)
    carried = Path(find_newest_checkpoint(str(tmp_path / "first")) or "").rename(tmp_path / "carried")
    assert set(list_registered_runs(carried)) == {"fold0", "fold1"}
    begin_attempt(monkeypatch, tmp_path / "second", resume=str(carried))
    found = [fit(ours, tmp_path / "two", run_name=f"fold{seed}", seed=seed) for seed in range(2)]
    assert [training.hash() for training in found] == whole
    assert [len(training.samples) for training in found] == [1, 16]


def test_what_another_run_of_the_trial_has_registered_is_left_alone(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "first")
    fit(ours, tmp_path / "one", run_name="fold0")
    carried = find_newest_checkpoint(str(tmp_path / "first"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin_attempt(monkeypatch, tmp_path / "retry", resume=str(carried))
        assert len(fit(ours, tmp_path / "two", run_name="fold1").samples) == 18
    begin_attempt(monkeypatch, tmp_path / "other", resume=carried, trial="other")
    with pytest.warns(CheckpointWarning, match=r"another trial's and holds the runs \['fold0'\]"):
        assert len(fit(ours, tmp_path / "three", run_name="fold1").samples) == 18


def test_superseded_copies_do_not_fill_the_disk(ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    monkeypatch.setattr("proctor.sdk.pytorch.trial.time", lambda: 1e12)
    fit(ours, tmp_path / "root")
    assert [steps(Path(path)) for path in list_checkpoints(str(tmp_path / "job"))] == [[15], [17]]


def test_a_run_that_starts_over_in_a_folder_keeps_its_own_newest(ours: Any, tmp_path: Path) -> None:
    fit(ours, tmp_path)
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4, anew=True)
    assert steps(tmp_path / "lightning") == [2, 17]
    assert len(fit(ours, tmp_path).samples) == 16


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(ours: Any, tmp_path: Path) -> None:
    whole = fit(ours, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(ours, tmp_path / "cut", kill=6)
    newest = tmp_path / "cut" / "lightning" / "step-4.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match="step-4.ckpt is not what was stored"):
        assert fit(ours, tmp_path / "cut").hash() == whole.hash()


def test_a_run_whose_checkpoints_are_all_torn_does_not_begin_anew_in_silence(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4)
    (tmp_path / "lightning" / "step-2.ckpt").write_bytes(b"")
    with pytest.warns(CheckpointWarning), pytest.raises(UnreadableCheckpointError, match="none of the 1 checkpoints"):
        fit(ours, tmp_path)


def test_what_a_kill_has_left_half_written_is_removed(ours: Any, tmp_path: Path) -> None:
    (tmp_path / "lightning").mkdir()
    for name in (".unfinished-step-2.ckpt", "step-90.ckpt"):
        (tmp_path / "lightning" / name).touch()
    fit(ours, tmp_path)
    assert sorted(path.name for path in (tmp_path / "lightning").iterdir()) == [
        "latest.json",
        "step-15.ckpt",
        "step-17.ckpt",
    ]


def test_what_is_not_exact_is_refused_if_that_is_wanted(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4)
    with pytest.raises(NotExactError, match="batch size of training 0 was 4, is 2"):
        fit(ours, tmp_path, batch_size=2, strict_resume=True)


def test_a_loader_that_forgets_where_it_is_is_told(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4, plain=True)
    with pytest.warns(NotExactWarning, match="position in the data was 'kept', is 'lost'"):
        fit(ours, tmp_path, plain=True)


@pytest.mark.parametrize(("interval", "count"), [("step", 1), ("epoch", 0)])
def test_a_plateau_that_misses_a_step_is_told(ours: Any, tmp_path: Path, interval: str, count: int) -> None:
    trainer = {"lr_scheduler_configs": [SimpleNamespace(reduce_on_plateau=True, interval=interval, scheduler=None)]}
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4, trainer=trainer)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        fit(ours, tmp_path, trainer=trainer)
    assert [str(each.message) for each in reported] == ["not exact: plateaus by steps was 'kept', is 'lost'"] * count


def test_the_loaders_of_a_tree_are_all_described(ours: Any) -> None:
    loaders = [ours.ResumableLoader(DisturbedDigits(), DataLoaderParams(batch_size=size)) for size in (2, 4)]
    found = ours.describe_loaders({"a": loaders[0], "b": [loaders[1]]})
    assert found is not None
    assert {name: facts["batch size"] for name, facts in found.items()} == {
        "training 0 of loader a": 2,
        "training 0 of loader 0 of loader b": 4,
    }
    assert ours.describe_loaders({"a": loaders[0], "b": object()}) is None


@pytest.mark.parametrize("options", [{"run_name": "a/b"}, {"keep_last": 0}, {"every_n_steps": 0}])
def test_an_option_out_of_its_range_is_refused(ours: Any, tmp_path: Path, options: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))} .*found"):
        ours.ProctorCallback(tmp_path, **{"every_n_steps": 1, **options})


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


def test_a_kill_before_the_newest_checkpoint_is_registered_loses_no_steps(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(ours, tmp_path / "whole")
    registered = cut_before_registration(ours, fit, tmp_path / "cut", job=tmp_path / "job", monkeypatch=monkeypatch)
    begin_attempt(monkeypatch, tmp_path / "retry", resume=registered)
    resumed = fit(ours, tmp_path / "cut")
    assert len(resumed.samples) == 14
    assert resumed.hash() == whole.hash()
    begin_attempt(monkeypatch, tmp_path / "other", resume=registered, trial="other")
    assert len(fit(ours, tmp_path / "cut").samples) == 16  # another trial continues from what it was handed


def test_a_copy_of_the_newest_checkpoint_stands_in_for_it_if_it_is_torn(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=6)
    (tmp_path / "t" / "lightning" / "step-4.ckpt").write_bytes(b"torn")
    assert len(fit(ours, tmp_path).samples) == 14


@pytest.mark.parametrize(("trial", "own", "rate"), [("clone", 0.002, 0.002), ("donor", 0.01, 0.01)])
def test_only_a_clone_takes_over_the_rate_of_its_own_parameters(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: str, own: float, rate: float
) -> None:
    begin_attempt(monkeypatch, tmp_path / "donor.1", trial="donor", parameters={"rate": 0.01})
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=5, rate=0.01)
    saved = find_newest_checkpoint(str(tmp_path / "donor.1"))
    begin_attempt(monkeypatch, tmp_path / "next.1", resume=saved, trial=trial, parameters={"rate": own})
    assert fit(ours, tmp_path / "elsewhere", kill=0, rate=0.002).rates() == [rate]
    assert fit(ours, tmp_path / "elsewhere", rate=0.5).rates() == [rate]  # tried again: it is no clone of itself
