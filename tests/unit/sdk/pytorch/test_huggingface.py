"""The callback for the Trainer of transformers, in its order of calls."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.frameworks import Killed, Training, TransformersTrainer, cut_before_registration, imported_with, read_reports
from fakes.trained_models import DisturbedDigits

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints.saving import find_newest_checkpoint, list_checkpoints
from proctor.sdk.pytorch import (
    CheckpointWarning,
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    NotExactError,
    NotExactWarning,
    seed_rngs,
)
from proctor.sdk.pytorch.checkpoints.pointer import read_pointer
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import UnreadableCheckpointError
from proctor.sdk.pytorch.trial import list_registered_runs

OURS = "proctor.sdk.pytorch.huggingface"


@pytest.fixture
def ours() -> Iterator[Any]:
    with imported_with("transformers", "TrainerCallback", OURS) as module:
        yield module


def fit(
    ours: Any,
    root: Path,
    *,
    kill: int = 0,
    seed: int = 5,
    run_name: str = "transformers",
    strict: bool = False,
    anew: bool = False,
    rate: float = 0.01,
    **arguments: Any,
) -> Training:
    seed_rngs(seed)
    data = DataModule()
    data.bind(seed, Ranks())
    data.add_train_phase(DisturbedDigits(), DataLoaderParams(batch_size=4))
    batches = list(data.open(Phase.TRAINING)) * 2
    training = Training(kill, rate)
    callback = ours.ProctorCallback(root, run_name=run_name, metric="loss", strict_resume=strict)
    trainer = TransformersTrainer(training, callback, **{"seed": seed, "learning_rate": rate, **arguments})
    trainer.train(batches, None if anew else callback.find_checkpoint())
    return training


@pytest.mark.parametrize("kill", [1, 4, 7, 8, 9])
def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint(ours: Any, tmp_path: Path, kill: int) -> None:
    whole = fit(ours, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(ours, tmp_path / "cut", kill=kill)
    (tmp_path / "cut" / "transformers" / "checkpoint-98").mkdir(parents=True)  # one that a kill has torn
    resumed = fit(ours, tmp_path / "cut")
    assert resumed.hash() == whole.hash()
    assert len(resumed.samples) == 12 - (kill - 1) // 2 * 2


def test_a_trial_is_told_of_checkpoints_and_metrics_and_ends_when_it_is_asked_to(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(ours, tmp_path / "whole")
    job = tmp_path / "job"
    begin_attempt(monkeypatch, job)
    monkeypatch.setattr(sdk, "should_stop", lambda: len(read_reports(job)) == 2)
    assert len(fit(ours, tmp_path / "cut").samples) == 3
    assert read_reports(job) == [(step, ["default", "loss"]) for step in (1, 2, 3)]  # and no evaluation as it leaves
    assert [(read_pointer(Path(path)) or [])[0].iteration for path in list_checkpoints(str(job))] == [2, 3]
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["t"]
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    rest = fit(ours, tmp_path / "cut")
    assert len(rest.samples) == 9
    assert rest.hash() == whole.hash()
    assert (6, ["eval_loss"]) in read_reports(job)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_run_that_is_asked_to_stop_is_exact_where_epochs_are_evaluated_and_saved(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    job, epochs = tmp_path / "job", {"save_strategy": "epoch"}
    whole = fit(ours, tmp_path / "whole", **epochs)
    begin_attempt(monkeypatch, job)
    monkeypatch.setattr(sdk, "should_stop", lambda: len(read_reports(job)) == stop - 1)
    assert len(fit(ours, tmp_path / "cut", **epochs).samples) == stop
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    assert fit(ours, tmp_path / "cut", **epochs).hash() == whole.hash()
    assert [step for step, names in read_reports(job) if "eval_loss" in names] == [6, 12]


def test_a_retry_elsewhere_gives_every_run_of_the_trial_its_own_checkpoint_back(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [fit(ours, tmp_path / "whole", run_name=f"fold{seed}", seed=seed).hash() for seed in range(2)]
    begin_attempt(monkeypatch, tmp_path / "first")
    fit(ours, tmp_path / "one", run_name="fold0", seed=0)
    (tmp_path / "one" / "t" / "fold0" / "checkpoint-12" / "folder").mkdir()  # some write folders into it
    with pytest.raises(Killed):
        fit(ours, tmp_path / "one", run_name="fold1", seed=1, kill=4)
    carried = Path(find_newest_checkpoint(str(tmp_path / "first")) or "").rename(tmp_path / "carried")
    assert set(list_registered_runs(carried)) == {"fold0", "fold1"}
    begin_attempt(monkeypatch, tmp_path / "second", resume=str(carried))
    found = [fit(ours, tmp_path / "two", run_name=f"fold{seed}", seed=seed) for seed in range(2)]
    assert [training.hash() for training in found] == whole
    assert [len(training.samples) for training in found] == [0, 10]


def test_another_trials_run_of_another_name_is_told(ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_attempt(monkeypatch, tmp_path / "first")
    fit(ours, tmp_path / "one", run_name="fold0")
    carried = find_newest_checkpoint(str(tmp_path / "first"))
    begin_attempt(monkeypatch, tmp_path / "other", resume=carried, trial="other")
    with pytest.warns(CheckpointWarning, match=r"another trial's and holds the runs \['fold0'\]"):
        assert len(fit(ours, tmp_path / "two", run_name="fold1").samples) == 12


def test_a_checkpoint_of_this_name_that_is_of_another_kind_is_refused(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    fit(ours, tmp_path / "root")
    (Path(find_newest_checkpoint(str(tmp_path / "job")) or "") / "proctor.json").unlink()
    with pytest.raises(UnreadableCheckpointError, match="Give runs of different kinds a run_name each"):
        fit(ours, tmp_path / "root")


def test_a_checkpoint_that_is_written_again_is_whole_only_then(ours: Any, tmp_path: Path) -> None:
    fit(ours, tmp_path)
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4, anew=True)
    assert len(fit(ours, tmp_path).samples) == 10  # from the second step, not from the end of the run before


def test_what_is_not_exact_is_refused_if_that_is_wanted(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4)
    with pytest.raises(NotExactError, match="accumulation steps was 1, is 2"):
        fit(ours, tmp_path, gradient_accumulation_steps=2, strict=True)


def test_a_resume_that_does_not_skip_what_was_trained_on_is_told(ours: Any, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fit(ours, tmp_path, kill=4, ignore_data_skip=True)
    with pytest.warns(NotExactWarning, match="position in the data was 'kept', is 'lost'"):
        fit(ours, tmp_path, ignore_data_skip=True)


@pytest.mark.parametrize("arguments", [{"output_dir": "elsewhere"}, {"save_only_model": True}])
def test_what_could_not_be_continued_is_refused(ours: Any, tmp_path: Path, arguments: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match=r"Give TrainingArguments callback\.folder"):
        fit(ours, tmp_path, **arguments)


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, OURS, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'proctor\[huggingface\]'"):
        __import__(OURS)


def test_a_kill_before_the_newest_checkpoint_is_registered_loses_no_steps(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(ours, tmp_path / "whole")
    registered = cut_before_registration(ours, fit, tmp_path / "cut", job=tmp_path / "job", monkeypatch=monkeypatch)
    begin_attempt(monkeypatch, tmp_path / "retry", resume=registered)
    resumed = fit(ours, tmp_path / "cut")
    assert len(resumed.samples) == 8
    assert resumed.hash() == whole.hash()
    begin_attempt(monkeypatch, tmp_path / "other", resume=registered, trial="other")
    assert len(fit(ours, tmp_path / "cut").samples) == 10  # another trial continues from what it was handed


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
