"""Checkpoints of Helios and of other versions (rows C5, C13, C14). The Helios files were written by Helios itself."""

import runpy
import shutil
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.checkpoint_writer import write_checkpoint

from proctor.sdk.bundle import bundle_files
from proctor.sdk.compat.helios_checkpoints import main, migrate_checkpoints, read_any, translate
from proctor.sdk.pytorch import TrainingState
from proctor.sdk.pytorch.checkpoints import serialization
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.serialization import FORMAT, upgrade
from proctor.sdk.pytorch.errors import UnreadableCheckpointError
from proctor.sdk.pytorch.reproducibility.seeding import load_rng_state_dict

FILES = Path(__file__).parent / "files"
HELIOS = ["1.0.0", "2.0.1"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a checkpoint of each Helios; each is iteration 6, the first batch of the second epoch done."""
    folder = tmp_path / "old"
    folder.mkdir()
    for version in HELIOS:
        shutil.copy(FILES / f"helios_{version}.pth", folder / f"tiny_{version}_epoch_2_iter_6.pth")
    return folder


def content(**changes: Any) -> "dict[str, Any]":
    state = TrainingState(global_epoch=1, current_iteration=4, global_iteration=4).state_dict()
    return {"format": FORMAT, "version": "0.1.0", "training_state": state, "model": {}, "rng": [], **changes}


def snapshot(folder: Path) -> "dict[str, bytes]":
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("version", HELIOS)
def test_C5_a_checkpoint_of_helios_is_read_through_migration_only(source: Path, version: str) -> None:
    with pytest.raises(UnreadableCheckpointError, match=r"python -m proctor\.sdk\.pytorch\.migrate SOURCE TARGET"):
        upgrade(read_any(source / f"tiny_{version}_epoch_2_iter_6.pth"), "old.pth")


@pytest.mark.parametrize("version", HELIOS)
def test_C14_what_helios_saved_is_carried_over(source: Path, version: str) -> None:
    found = upgrade(translate(read_any(source / f"tiny_{version}_epoch_2_iter_6.pth")), "old.pth")
    state = TrainingState()
    state.load_state_dict(found["training_state"])
    assert (state.epoch, state.batch, state.global_epoch) == (1, 1, 2)
    assert (state.current_iteration, state.global_iteration, state.window) == (6, 6, 0)
    net, optimizer = torch.nn.Linear(1, 1), torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
    net.load_state_dict(found["model"]["net"])
    optimizer.load_state_dict(found["model"]["opt"])
    assert float(optimizer.state_dict()["state"][0]["step"]) == 6
    load_rng_state_dict(found["rng"][0])
    assert found["log_path"].startswith("/srv/logs/")
    assert "fingerprint" not in found
    assert ("amp_scaler" in found) is (version == "2.0.1")


def test_C14_an_epoch_that_had_ended_is_not_entered_again() -> None:
    counters = dict.fromkeys(("current_iteration", "global_iteration", "validation_cycles", "early_stop_count"), 10)
    old = {"training_state": {**counters, "global_epoch": 2, "dataset_iter": 0}, "model": {}, "rng": {}}
    assert translate(old)["training_state"]["epoch"] == 2
    assert translate(old)["version"] == "helios before 1.0"


def test_C14_phase_and_plugins_of_helios_2_are_carried_over(source: Path) -> None:
    old = read_any(source / "tiny_2.0.1_epoch_2_iter_6.pth")
    found = translate({**old, "datamodule": {"phase": 3}, "my_plugin": {"a": 1}})
    assert found["training_state"]["phase"] == 3
    assert found["plugins"] == {"my_plugin": {"a": 1}}


def test_C14_other_counters_than_those_of_helios_are_refused() -> None:
    with pytest.raises(UnreadableCheckpointError, match="dataset_iter"):
        translate({"training_state": {"epoch": 1}, "model": {}, "rng": {}})


def test_C14_migration_goes_into_a_new_folder_once_and_leaves_the_source_alone(source: Path, tmp_path: Path) -> None:
    before, target = snapshot(source), tmp_path / "root" / "run"
    done = migrate_checkpoints(source, target)
    assert snapshot(source) == before
    assert [(item.is_new, "this trainer's order of the samples" in item.note) for item in done] == [(True, True)] * 2
    loaded = CheckpointFolder(tmp_path / "root", "run").load_newest()
    assert loaded is not None
    assert loaded.content["training_state"]["global_iteration"] == 6
    migrated = snapshot(target)
    assert [item.is_new for item in migrate_checkpoints(source, target)] == [False, False]
    assert snapshot(target) == migrated


def test_C14_a_dry_run_writes_nothing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), str(tmp_path / "run"), "--dry-run"]) == 0
    assert not (tmp_path / "run").exists()
    assert "would be migrated from helios 2.0.1" in capsys.readouterr().out


def test_C14_a_run_that_has_gone_on_from_the_target_keeps_its_pointer(source: Path, tmp_path: Path) -> None:
    migrate_checkpoints(source, tmp_path / "run")
    storage = CheckpointFolder(tmp_path, "run")
    storage.open()
    storage.load_newest()
    storage.save(content())
    storage.close()
    migrate_checkpoints(source, tmp_path / "run")
    assert storage.entries()[0].iteration == 4


def test_C14_another_checkpoint_of_the_same_name_is_not_overwritten(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run"
    target.mkdir()
    (target / "tiny_2.0.1_epoch_2_iter_6.pth").write_bytes(b"somebody's")
    assert main([str(source), str(target)]) == 1
    assert "is a different checkpoint" in capsys.readouterr().err
    assert (target / "tiny_2.0.1_epoch_2_iter_6.pth").read_bytes() == b"somebody's"


@pytest.mark.parametrize("case", ["same", "missing", "empty"])
def test_C14_folders_that_make_no_sense_are_refused(
    source: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    arguments = {"same": [source, source], "missing": [tmp_path / "no", source], "empty": [tmp_path / "empty", source]}
    assert main([str(path) for path in arguments[case]]) == 1
    assert "migrate: " in capsys.readouterr().err


def test_C14_a_checkpoint_with_other_classes_is_refused_until_they_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "old"
    source.mkdir()
    write_checkpoint(source / "a.pth", content(model={"own": Own()}), [Own])
    assert main([str(source), str(tmp_path / "run")]) == 1
    assert "without running code" in capsys.readouterr().err
    assert main([str(source), str(tmp_path / "run"), "--allow", f"{Own.__module__}:Own"]) == 0
    assert main([str(source), str(tmp_path / "run"), "--allow", "nothing"]) == 1


class Own:
    """A class of the user's."""


def test_C14_the_command_runs_as_a_module(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "proctor.sdk.pytorch.migrate"
    monkeypatch.delitem(sys.modules, main.__module__)
    monkeypatch.setattr(sys, "argv", [name, str(source), str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__")
    assert ended.value.code == 0
    assert "migrated from helios 1.0.0 to format" in capsys.readouterr().out


def test_C14_what_migrates_is_not_sent_to_machines() -> None:
    files = bundle_files()
    assert [name for name in files if "migrat" in name or "helios" in name] == ["proctor/sdk/pytorch/migrate.py"]
    assert not [name for name, source in files.items() if b"def migrate_checkpoints" in source]


@pytest.mark.parametrize(
    ("file", "verdict"),
    [
        ({}, None),
        ({"version": "99.0.0"}, None),  # a newer version that still writes this format
        ({"part of a newer version": 1}, None),
        (
            {"format": FORMAT + 1, "version": "99.0.0"},
            f"proctor 99.0.0 in format {FORMAT + 1}; .* up to format {FORMAT}",
        ),
        ({"format": None}, "no format number"),
        ({"format": 0}, "no version of proctor has written"),
    ],
)
def test_C13_old_and_new_files_meet_this_code(file: "dict[str, Any]", verdict: "str | None") -> None:
    if verdict is None:
        assert upgrade(content(**file), "a.pth")["training_state"]["global_iteration"] == 4
        return
    with pytest.raises(UnreadableCheckpointError, match=verdict):
        upgrade(content(**file), "a.pth")


def test_C13_older_formats_are_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "FORMAT", 3)
    monkeypatch.setattr(
        serialization,
        "STEPS",
        {1: lambda old: {**old, "model": {"a": old["model"]}}, 2: lambda old: {**old, "model": {"b": old["model"]}}},
    )
    old = {**content(), "format": 1}
    assert upgrade(old, "a.pth")["model"] == {"b": {"a": {}}}
    assert upgrade(old, "a.pth")["format"] == 3
    assert old["format"] == 1


def test_C13_a_file_without_its_parts_is_incomplete() -> None:
    with pytest.raises(UnreadableCheckpointError, match=r"a\.pth is incomplete: it has no model, rng"):
        upgrade({"format": FORMAT, "training_state": OrderedDict()}, "a.pth")
