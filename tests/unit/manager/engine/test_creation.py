"""What a killed manager has left half done is removed; nothing else is."""

import os
from pathlib import Path

import pytest
from fakes.small_experiments import SMALL

from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.dispatcher.algorithms.registered import FILE as REGISTERED_FILE
from proctor.manager.engine.creation import (
    HANDOVER_SECONDS,
    LOCK_SECONDS,
    check_command,
    remove_folder,
    remove_leftovers,
)
from proctor.manager.errors import BadRequest
from proctor.manager.settings import CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE, Home
from proctor.sdk.client.credentials import HELD_PREFIX, held_copy


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.prepare()
    return found


def experiment(home: Home, name: str, *files: str) -> Path:
    folder = home.experiment_directory(name)
    folder.mkdir()
    for file in files:
        (folder / file).write_text("{}")
    return folder


def test_an_experiment_that_was_being_created_goes(home: Home) -> None:
    folders = [experiment(home, "half", UNFINISHED_FILE, CONFIG_FILE), experiment(home, "less")]
    remove_leftovers(home, known=set())
    assert [folder for folder in folders if folder.exists()] == []


def test_an_experiment_whose_row_or_metrics_were_lost_and_what_is_not_ours_stay(home: Home) -> None:
    folders = [
        experiment(home, "known", CONFIG_FILE),
        experiment(home, "old", CONFIG_FILE, "metrics.db"),
        experiment(home, "without metrics", CONFIG_FILE),
        experiment(home, "foreign", "notes.txt"),
    ]
    remove_leftovers(home, known={"known"})
    assert [folder for folder in folders if not folder.exists()] == []


def test_drafts_and_old_handovers_go_and_young_handovers_stay(home: Home) -> None:
    drafts = [home.path / ".token.0a1b2c3d", home.path / "manager.json.new", home.run_directory / "socket.new"]
    drafts.append(home.path / f"{REGISTERED_FILE}.4711.new")
    old, young = home.incoming_directory / "old.json", home.incoming_directory / "young.json"
    for path in (*drafts, old, young, home.token_file):
        path.touch(mode=0o600)
    os.utime(old, (0, old.stat().st_mtime - HANDOVER_SECONDS - 1))
    remove_leftovers(home, known=set())
    assert [path for path in (*drafts, old) if path.exists()] == []
    assert young.exists()
    assert home.token_file.exists()


def test_files_of_a_user_whose_folder_has_become_a_home_stay(home: Home) -> None:
    (home.incoming_directory / "scans").mkdir()
    incoming = [home.incoming_directory / name for name in ("scans/1.json", "labels.json", "held-out.zip", "photo.jpg")]
    files = [*incoming, home.path / "thesis.new", home.path / ".token.txt", home.run_directory / "results.new"]
    for path in files:
        path.write_text("{}")
        path.chmod(0o644)
    (home.incoming_directory / "photo.jpg").chmod(0o600)
    for path in (*incoming, home.incoming_directory / "scans"):
        os.utime(path, (0, 0))
    remove_leftovers(home, known=set())
    assert [path for path in files if not path.exists()] == []


def test_a_copy_whose_process_is_gone_goes_and_one_that_is_being_made_stays(home: Home, tmp_path: Path) -> None:
    archive = tmp_path / "saved.zip"
    archive.write_bytes(b"an archive")
    left = home.incoming_directory / f"{HELD_PREFIX}1234.zip"
    left.write_bytes(b"half an arch")
    left.chmod(0o600)
    os.utime(left, (0, left.stat().st_mtime - LOCK_SECONDS - 1))
    with held_copy(home.path, archive) as name:
        held = home.incoming_directory / name
        os.utime(held, (0, 0))
        remove_leftovers(home, known=set())
        assert held.read_bytes() == b"an archive"
        assert not left.exists()
    assert not held.exists()


def test_deleting_a_folder_can_be_begun_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = experiment(home, "gone", CONFIG_FILE, "metrics.db")
    (folder / "trials").mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr("proctor.manager.engine.creation.shutil.rmtree", refuse)
        with pytest.raises(PermissionError):
            remove_folder(folder)
    assert (folder / CONFIG_FILE).exists(), "what shows that it is ours goes last"
    remove_folder(folder)
    assert not folder.exists()
    remove_folder(folder)


def test_an_experiment_that_was_being_loaded_goes_unless_it_is_known(home: Home) -> None:
    half = experiment(home, "half", CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE)
    whole = experiment(home, "whole", CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE)
    remove_leftovers(home, known={"whole"})
    assert not half.exists()
    assert {path.name for path in whole.iterdir()} == {CONFIG_FILE, METRICS_FILE}


def test_a_command_that_its_shell_does_not_find_is_refused_where_its_environment_is_known(tmp_path: Path) -> None:
    config = load_experiment_mapping(SMALL | {"trialCommand": "pyton3 trial.py"}, str(tmp_path)).config
    check_command(config, None)
    with pytest.raises(BadRequest, match="trialCommand: pyton3 is not found on the PATH"):
        check_command(config, {"PATH": "/usr/bin"})
