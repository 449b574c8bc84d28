"""What only the callback for the Trainer of transformers has to do; `test_frameworks.py` has what both callbacks do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.frameworks import Transformers, read_reports

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints.saving import find_newest_checkpoint
from proctor.sdk.pytorch import ConfigurationError
from proctor.sdk.pytorch.errors import UnreadableCheckpointError


@pytest.fixture
def transformers() -> "Iterator[Any]":
    with Transformers().imported() as imported:
        yield imported


@pytest.mark.parametrize("stop", [4, 6])
def test_a_run_that_is_asked_to_stop_is_exact_where_epochs_are_evaluated_and_saved(
    transformers: Transformers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    job, epochs = tmp_path / "job", {"save_strategy": "epoch"}
    whole = transformers.fit(tmp_path / "whole", **epochs)
    begin_attempt(monkeypatch, job)
    monkeypatch.setattr(sdk, "should_stop", lambda: len(read_reports(job)) == stop - 1)
    assert len(transformers.fit(tmp_path / "cut", **epochs).samples) == stop
    monkeypatch.setattr(sdk, "should_stop", lambda: False)
    assert transformers.fit(tmp_path / "cut", **epochs).hash() == whole.hash()
    assert [step for step, names in read_reports(job) if "eval_loss" in names] == [6, 12]


def test_a_checkpoint_of_this_name_that_is_of_another_kind_is_refused(
    transformers: Transformers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    transformers.fit(tmp_path / "root")
    (Path(find_newest_checkpoint(str(tmp_path / "job")) or "") / "proctor.json").unlink()
    with pytest.raises(UnreadableCheckpointError, match="Give runs of different kinds a run_name each"):
        transformers.fit(tmp_path / "root")


@pytest.mark.parametrize("arguments", [{"output_dir": "elsewhere"}, {"save_only_model": True}])
def test_what_could_not_be_continued_is_refused(
    transformers: Transformers, tmp_path: Path, arguments: "dict[str, Any]"
) -> None:
    with pytest.raises(ConfigurationError, match=r"Give TrainingArguments callback\.folder"):
        transformers.fit(tmp_path, **arguments)
