"""Checkpoints as a run makes and finds them (rows C1, C4, C6, C7, C15 to C18, R6, X10, X11)."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.checkpoint_writer import write_checkpoint
from fakes.full_disk import refuse
from fakes.history_digest import digest_of
from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state

from proctor.sdk.compat.helios_checkpoints import migrate_checkpoints
from proctor.sdk.pytorch import (
    CheckpointFolder,
    CheckpointWarning,
    DataLoaderParams,
    DataModule,
    Model,
    NotExactError,
    NotExactWarning,
    Outcome,
    Phase,
    Trainer,
    TrainingState,
)
from proctor.sdk.pytorch.checkpoints.history import read_history
from proctor.sdk.pytorch.checkpoints.serialization import FORMAT, load
from proctor.sdk.pytorch.data.loaders import EpochLoader

FILES = Path(__file__).parent / "files"
EPOCHS = {"total_steps": 2, "chkpt_frequency": 1, "use_cpu": True}
STEPS = {"train_unit": "iteration", "total_steps": 8, "chkpt_frequency": 2, "use_cpu": True}


def fit(root: Path, model: "Model | None" = None, *, batch_size: int = 4, name: str = "run", **options: Any) -> Outcome:
    chosen = {**EPOCHS, **options, "chkpt_root": root}
    return Trainer(name, **chosen).fit(model or DigitsModel(), DigitsData(batch_size=batch_size))


def stored(outcome: Outcome) -> Path:
    assert outcome.checkpoint is not None
    return outcome.checkpoint


def names(root: Path) -> "list[str]":
    return sorted(path.name for path in (root / "run").glob("*.pth"))


def test_C4_C6_a_checkpoint_holds_these_parts_of_the_run_and_of_the_model(tmp_path: Path) -> None:
    found = load(stored(fit(tmp_path, DigitsModel(Recipe(amp=True)))))
    assert set(found) == {
        "format", "version", "training_state", "model", "amp_scaler", "rng", "averages", "attributes", "history",
        "metrics", "plugins", "observers", "log_path", "run_path", "fingerprint", "settings",
    }  # fmt: skip
    assert found["format"] == FORMAT
    assert set(found["model"]) == {"net", "optimizer", "scheduler"}


def test_C7_equal_runs_write_equal_checkpoints_to_the_last_bit(tmp_path: Path) -> None:
    first, second = (stored(fit(tmp_path / name)).read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_C9_a_run_resumes_from_the_checkpoint_before_a_torn_one_and_ends_alike(tmp_path: Path, size: int) -> None:
    newest = stored(fit(tmp_path))
    whole = load(newest)["model"]
    os.truncate(newest, size)
    with pytest.warns(CheckpointWarning, match=f"found {size} bytes. It is passed over"):
        resumed = fit(tmp_path)
    assert resumed.resumed_from == newest.with_name("run_epoch_1_iter_6.pth")
    assert hash_state(load(stored(resumed))["model"]) == hash_state(whole)


class Scored(DigitsModel):
    scores = (3.0, 5.0, 4.0, 5.0, 2.0)

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"score": self.scores[validation_cycle]})


def test_C15_a_best_validation_is_saved_although_no_checkpoint_is_due(tmp_path: Path) -> None:
    options = {"total_steps": 5, "chkpt_frequency": 5, "valid_frequency": 1, "keep_last": 1}
    fit(tmp_path, Scored(), **options, keep_best=1, best_metric="score")
    entries = CheckpointFolder(tmp_path, "run").entries()
    assert [(entry.epoch, entry.score) for entry in entries] == [(5, 2.0), (2, 5.0)]


class Judged(DigitsModel):
    loads = 0

    def load_for_testing(self) -> None:
        self.loads += 1

    def test_step(self, batch: Any, step: int) -> None:
        self.net(batch[0])


def test_C16_a_checkpoint_counts_for_a_test_whatever_is_in_it(tmp_path: Path) -> None:
    fit(tmp_path)
    path = tmp_path / "run" / names(tmp_path)[-1]
    untouched = {**load(path), "training_state": TrainingState().state_dict()}
    for file in (tmp_path / "run").iterdir():
        file.unlink()
    write_checkpoint(path, untouched)
    model = Judged()
    Trainer("run", chkpt_root=tmp_path, use_cpu=True).test(model, DigitsData())
    assert model.loads == 0


def test_R6_another_batch_size_is_told_and_strict_resume_refuses_it(tmp_path: Path) -> None:
    fit(tmp_path, total_steps=1)
    with pytest.raises(NotExactError, match="batch size of training 0 was 4, is 2"):
        fit(tmp_path, batch_size=2, strict_resume=True)
    with pytest.warns(NotExactWarning, match="batch size of .* was 4, is 2"):
        fit(tmp_path, batch_size=2)


def test_X11_the_history_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path: Path) -> None:
    fit(tmp_path / "a")
    fit(tmp_path / "b", total_steps=1)
    with open(tmp_path / "b" / "run" / "history.jsonl", "ab") as file:
        file.write(b'{"a step": "between checkpoint and kill"}\n{"torn')
    outcome = fit(tmp_path / "b")
    digests = [digest_of(read_history(tmp_path / folder / "run" / "history.jsonl")) for folder in ("a", "b")]
    assert digests[0] == digests[1] == load(stored(outcome))["history"]["digest"]


def test_a_disk_that_is_full_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with pytest.raises(RuntimeError, match="could not be stored"):
        fit(tmp_path, total_steps=1)


class Line(Model):
    """The model of the Helios files: one weight."""

    def setup(self) -> None:
        self.net = torch.nn.Linear(1, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
        self.batches = 0

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.batches += 1
        self.opt.zero_grad()
        ((self.net(batch[0]) - batch[1]) ** 2).mean().backward()
        self.opt.step()


class LineData(DataModule):
    def __init__(self, samples: int = 20) -> None:
        self.samples = samples

    def setup(self) -> None:
        x = torch.arange(float(self.samples)).view(-1, 1)
        self.add_train_phase(torch.utils.data.TensorDataset(x, 2 * x), DataLoaderParams(batch_size=4, shuffle=True))


class BoundedLineData(LineData):
    """Ends a run that goes round without reading a batch."""

    opened = 0

    def open(self, phase: Phase, number: int = 0) -> EpochLoader:
        self.opened += 1
        assert self.opened < 50, "the loop does not get on"
        return super().open(phase, number)


def migrated(tmp_path: Path, version: str) -> Path:
    (tmp_path / "old").mkdir()
    shutil.copy(FILES / f"helios_{version}.pth", tmp_path / "old" / "tiny_epoch_2_iter_6.pth")
    migrate_checkpoints(tmp_path / "old", tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("version", ["1.0.0", "2.0.1"])
def test_C14_a_run_of_helios_goes_on_after_migration_and_says_that_it_is_not_exact(
    tmp_path: Path, version: str
) -> None:
    model = Line()
    root = migrated(tmp_path, version)
    with pytest.warns(NotExactWarning, match="no fingerprint"):
        outcome = Trainer("run", **{**STEPS, "total_steps": 12, "chkpt_root": root}).fit(model, LineData())
    assert model.batches == 6
    assert (outcome.state.epoch, outcome.state.batch, outcome.state.global_epoch) == (2, 2, 3)
    assert float(model.opt.state_dict()["state"][0]["step"]) == 12


def test_C13_a_checkpoint_of_the_first_format_is_continued(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(FILES / "proctor_format_1.pth", tmp_path / "run" / "run_epoch_1_iter_4.pth")
    model = Line()
    with pytest.warns() as reported:
        outcome = Trainer("run", **{**STEPS, "chkpt_root": tmp_path}).fit(model, LineData())
    assert {warning.category for warning in reported} == {
        CheckpointWarning,
        NotExactWarning,
    }  # no history, no fingerprint
    assert model.batches == 4
    assert outcome.state.global_iteration == 8
    assert outcome.metrics == {"loss": 4.0}
    assert float(model.opt.state_dict()["state"][0]["step"]) == 8


def test_D11_a_checkpoint_of_helios_on_the_last_batch_of_an_epoch_does_not_loop_for_ever(tmp_path: Path) -> None:
    path = migrated(tmp_path, "2.0.1") / "run" / "tiny_epoch_2_iter_6.pth"
    old = load(path)
    old["training_state"]["batch"] = 5  # as Helios counts it there: all batches of the epoch
    write_checkpoint(path, old)
    (path.parent / "latest.json").unlink()
    model = Line()
    with pytest.warns(NotExactWarning):
        outcome = Trainer("run", **{**STEPS, "chkpt_root": tmp_path}).fit(model, BoundedLineData())
    assert model.batches == 2
    assert (outcome.state.epoch, outcome.state.batch, outcome.state.global_epoch) == (2, 2, 3)
