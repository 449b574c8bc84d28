"""What both the callback for Lightning and that for the Trainer of transformers do, each in its order of calls."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.frameworks import Framework, Killed, Lightning, Transformers, read_reports

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints.saving import find_newest_checkpoint, list_checkpoints
from proctor.sdk.pytorch import CheckpointWarning, NotExactError, NotExactWarning, trial
from proctor.sdk.pytorch.checkpoints.pointer import Entry, read_pointer
from proctor.sdk.pytorch.trial import list_registered_runs

FOLDS = ("fold0", "fold1")


@pytest.fixture(params=[Lightning, Transformers], ids=lambda kind: kind.name)
def framework(request: pytest.FixtureRequest) -> "Iterator[Framework]":
    with request.param().imported() as imported:
        yield imported


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(framework: Framework, tmp_path: Path) -> None:
    for number, (options, kills) in enumerate(framework.kills):
        whole = framework.fit(tmp_path / f"{number}", **options)
        for kill, saved in kills.items():
            root = tmp_path / f"{number} killed at {kill}"
            framework.cut(root, kill=kill, **options)
            (root / framework.name / "checkpoint-98").mkdir(parents=True)  # one that a kill has torn
            resumed = framework.fit(root, **options)
            assert resumed.samples == whole.samples[saved:], root
            assert resumed.hash() == whole.hash(), root


def test_a_trial_is_told_of_checkpoints_and_metrics_and_ends_when_it_is_asked_to(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = framework.fit(tmp_path / "whole")
    job = tmp_path / "job"
    begin_attempt(monkeypatch, job, trial="aB3xYz")
    reports, batch = framework.stopped_at
    monkeypatch.setattr(sdk, "should_stop", lambda: len(read_reports(job)) == reports)
    assert framework.fit(tmp_path / "cut").samples == whole.samples[:batch]
    *reported, later = framework.reports
    assert read_reports(job) == reported  # and nothing as it leaves
    assert [read_pointer(Path(path))[0].iteration for path in list_checkpoints(str(job))] == [*framework.saved]
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["aB3xYz"]
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    rest = framework.fit(tmp_path / "cut")
    assert rest.samples == whole.samples[batch:]
    assert rest.hash() == whole.hash()
    assert later in read_reports(job)


@pytest.mark.slow
def test_a_retry_elsewhere_gives_every_run_of_the_trial_its_own_checkpoint_back(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [framework.fit(tmp_path / "whole", run_name=name, seed=seed).hash() for seed, name in enumerate(FOLDS)]
    begin_attempt(monkeypatch, tmp_path / "first")
    framework.fit(tmp_path / "one", run_name="fold0", seed=0)
    framework.cut(tmp_path / "one", run_name="fold1", seed=1)
    carried = Path(find_newest_checkpoint(str(tmp_path / "first")) or "").rename(tmp_path / "carried")
    assert set(list_registered_runs(carried)) == set(FOLDS)
    begin_attempt(monkeypatch, tmp_path / "second", resume=str(carried))
    found = [framework.fit(tmp_path / "two", run_name=name, seed=seed) for seed, name in enumerate(FOLDS)]
    assert [training.hash() for training in found] == whole
    assert [framework.batches - len(training.samples) for training in found] == [framework.last_saved, 2]


@pytest.mark.slow
def test_what_another_run_of_the_trial_has_registered_is_left_alone_and_another_trials_is_told(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "first")
    framework.fit(tmp_path / "one", run_name="fold0")
    carried = find_newest_checkpoint(str(tmp_path / "first"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin_attempt(monkeypatch, tmp_path / "retry", resume=carried)
        assert len(framework.fit(tmp_path / "two", run_name="fold1").samples) == framework.batches
    begin_attempt(monkeypatch, tmp_path / "other", resume=carried, trial="other")
    with pytest.warns(CheckpointWarning, match=r"another trial's and holds the runs \['fold0'\]"):
        assert len(framework.fit(tmp_path / "three", run_name="fold1").samples) == framework.batches


def test_a_run_that_starts_over_in_a_folder_continues_from_its_own_newest_checkpoint(
    framework: Framework, tmp_path: Path
) -> None:
    framework.fit(tmp_path)
    framework.cut(tmp_path, anew=True)
    assert len(framework.fit(tmp_path).samples) == framework.batches - 2  # not from the end of the run before


def test_what_is_not_exact_is_refused_if_that_is_wanted(framework: Framework, tmp_path: Path) -> None:
    framework.cut(tmp_path)
    with pytest.raises(NotExactError, match=framework.difference):
        framework.fit(tmp_path, strict=True, **dict([framework.changed]))


def test_a_resume_that_forgets_where_in_the_data_it_is_is_told(framework: Framework, tmp_path: Path) -> None:
    framework.cut(tmp_path, **dict([framework.forgetful]))
    with pytest.warns(NotExactWarning, match="position in the data was 'kept', is 'lost'"):
        framework.fit(tmp_path, **dict([framework.forgetful]))


@pytest.mark.parametrize("kind", [Lightning, Transformers])
def test_without_the_framework_the_error_says_what_to_install(
    kind: "type[Framework]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in kind.absent:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, kind.module, raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'proctor\[{kind.module.rpartition('.')[2]}\]'"):
        __import__(kind.module)


def test_a_kill_before_the_newest_checkpoint_is_registered_loses_no_steps(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_links = trial.register_links

    def register(run_name: str, entry: Entry, paths: Any, *, place: Path) -> None:
        if entry.iteration > 2:
            raise Killed
        register_links(run_name, entry, paths, place=place)

    whole = framework.fit(tmp_path / "whole")
    begin_attempt(monkeypatch, tmp_path / "job")
    with monkeypatch.context() as patch:
        patch.setattr(trial, "register_links", register)
        framework.cut(tmp_path / "cut", kill=0)
    registered = find_newest_checkpoint(str(tmp_path / "job"))
    begin_attempt(monkeypatch, tmp_path / "retry", resume=registered)
    resumed = framework.fit(tmp_path / "cut")
    assert resumed.samples == whole.samples[4:]
    assert resumed.hash() == whole.hash()
    begin_attempt(monkeypatch, tmp_path / "other", resume=registered, trial="other")
    other = framework.fit(tmp_path / "cut")
    assert other.samples == whole.samples[2:]  # another trial continues from what it was handed


@pytest.mark.parametrize(("attempt", "own"), [("clone", 0.002), ("donor", 0.01)])
def test_only_a_clone_takes_over_the_rate_of_its_own_parameters(
    framework: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: str, own: float
) -> None:
    begin_attempt(monkeypatch, tmp_path / "donor.1", trial="donor", parameters={"rate": 0.01})
    framework.cut(tmp_path, kill=5, rate=0.01)
    saved = find_newest_checkpoint(str(tmp_path / "donor.1"))
    begin_attempt(monkeypatch, tmp_path / "next.1", resume=saved, trial=attempt, parameters={"rate": own})
    assert framework.fit(tmp_path / "elsewhere", rate=0.002).rates() == [own]
    assert framework.fit(tmp_path / "elsewhere", rate=0.5).rates() == [own]  # tried again: it is no clone of itself
