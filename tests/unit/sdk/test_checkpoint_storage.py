"""Checkpoints under a URL: whole or not there, verified, and deleted; as a trial and the manager see them."""

import errno
import json
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from fakes.attempts import begin_attempt
from fakes.full_disk import refuse
from fakes.saved_checkpoints import FILES, save, write_files

from proctor.sdk import errors
from proctor.sdk.checkpoints import saving, storage
from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, read_manifest, verify_checkpoint
from proctor.sdk.checkpoints.saving import fetch_checkpoint, list_checkpoints, locked_folder, save_checkpoint
from proctor.sdk.checkpoints.storage import (
    StorageError,
    delete_stored,
    download,
    probe,
    upload,
    verify_stored,
)
from proctor.sdk.errors import CheckpointError, DamagedCheckpointError
from proctor.sdk.protocol import CHECKPOINT_FOLDER, journal_name
from proctor.sdk.trial import get_checkpoint, report


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "sleep", lambda seconds: None)
    monkeypatch.setattr(saving, "sleep", lambda seconds: None)
    monkeypatch.setattr(saving, "_DOWNLOAD_PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("PROCTOR_REPORT_WAIT_SECONDS", "0")
    monkeypatch.setattr(saving, "_uploaded", [])
    monkeypatch.setattr(errors, "_given", set())  # what standard error has said already


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the job's checkpoints are stored, which its trial knows as a URL."""
    found = tmp_path / "storage" / "e1" / "t1" / "1"
    monkeypatch.setenv("PROCTOR_CHECKPOINT_STORAGE", f"file://{found}")
    return found


def test_a_checkpoint_is_stored_under_the_url_and_the_newest_stays_here(tmp_path: Path, job: Path, place: Path) -> None:
    first, second = save(write_files(tmp_path / "source"), job), save(write_files(tmp_path / "source"), job)
    assert [first.path, second.path] == [f"file://{place}/1", f"file://{place}/2"]
    for stored, number in ((first, 1), (second, 2)):
        assert verify_checkpoint(f"{place}/{number}", stored.manifest) == ""
        assert verify_stored(stored.path, stored.manifest) == ""
    assert list_checkpoints(str(job)) == [f"{job}/output/checkpoints/2"]


def test_the_manifest_is_uploaded_last(tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileSystem

    stored: list[list[str]] = []
    put = LocalFileSystem.put

    def watched(system: LocalFileSystem, here: list[str], there: list[str]) -> None:
        stored.append([path.removeprefix(f"{place}/1/") for path in there])
        put(system, here, there)

    monkeypatch.setattr(LocalFileSystem, "put", watched)
    save(write_files(tmp_path / "source"), job)
    assert stored == [sorted(FILES), [MANIFEST_FILE]]


def test_what_an_upload_that_was_cut_off_has_left_is_replaced(tmp_path: Path, job: Path, place: Path) -> None:
    write_files(place / "1", {"model.pt": b"half", "other": b"stale"})
    assert "has no manifest" in verify_stored(f"file://{place}/1", None)
    stored = save(write_files(tmp_path / "source"), job)
    assert stored.path == f"file://{place}/1"
    assert {path.name for path in (place / "1").rglob("*") if path.is_file()} == {
        "model.pt",
        "step",
        "empty",
        MANIFEST_FILE,
    }


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda place: (place / "model.pt").unlink(), "model.pt is missing"),
        (lambda place: os.truncate(place / "model.pt", 7), "model.pt has 7 bytes, 4,096 expected"),
        (lambda place: (place / MANIFEST_FILE).write_text("{}"), "its manifest is not the one that was registered"),
        (lambda place: (place / MANIFEST_FILE).unlink(), "it is gone, or was found to be damaged"),
    ],
    ids=["missing", "short", "other manifest", "no manifest"],
)
def test_verifying_says_what_is_wrong(tmp_path: Path, job: Path, place: Path, damage: object, expected: str) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    damage(place / "1")  # type: ignore[operator]
    assert verify_stored(stored.path, stored.manifest).startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "is_whole"),
    [
        ("trial.checkpoint.upload.before@1", False),
        ("trial.checkpoint.upload.before@2", False),
        ("trial.checkpoint.upload.after", True),
    ],
)
def test_a_trial_that_is_killed_while_it_uploads_leaves_a_whole_checkpoint_or_none(
    tmp_path: Path, job: Path, place: Path, point: str, is_whole: bool
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", "import sys; from proctor.sdk.checkpoints.saving import save_checkpoint as save; "
         "save(sys.argv[1], sys.argv[2])", str(write_files(tmp_path / "source")), str(job)],
        env={**os.environ, "PROCTOR_FAILPOINT": point},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    manifest = sha256((job / "output/checkpoints/1" / MANIFEST_FILE).read_bytes()).hexdigest()
    assert (verify_stored(f"file://{place}/1", manifest) == "") is is_whole
    assert save(write_files(tmp_path / "source"), job).path == f"file://{place}/2", (
        "the next one has a number of its own"
    )


def test_another_whole_checkpoint_is_never_replaced(tmp_path: Path, job: Path, place: Path) -> None:
    first = save(write_files(tmp_path / "source"), job)
    refusal = save_checkpoint(str(write_files(tmp_path / "other", {"model.pt": b"other"})), str(tmp_path / "other-job"))
    assert refusal == "a checkpoint could not be stored: the storage did not take it"
    assert verify_checkpoint(f"{place}/1", first.manifest) == ""
    upload(f"{job}/output/checkpoints/1", first.path)  # the same again: its answer may have been lost


def test_a_process_leaves_alone_what_another_one_is_uploading(tmp_path: Path, job: Path, place: Path) -> None:
    other = job / "output" / "checkpoints" / "1"
    other.mkdir(parents=True)
    first, second = save(write_files(tmp_path / "source"), job), save(write_files(tmp_path / "source"), job)
    assert [first.path, second.path] == [f"file://{place}/2", f"file://{place}/3"]
    assert sorted(path.name for path in other.parent.iterdir()) == ["1", "3"]


def test_the_checkpoint_that_a_job_was_handed_is_downloaded_once(tmp_path: Path, job: Path, place: Path) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    other = tmp_path / "next"
    folder = fetch_checkpoint(str(other), stored.path)
    assert verify_checkpoint(folder, stored.manifest) == ""
    delete_stored(stored.path)
    assert fetch_checkpoint(str(other), stored.path) == folder
    assert list_checkpoints(str(other)) == [], "it is none of the job's own"
    assert fetch_checkpoint(str(other), "/some/folder") == "/some/folder"


def test_a_checkpoint_is_downloaded_while_another_is_being_registered(tmp_path: Path, job: Path, place: Path) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    with locked_folder(str(tmp_path / "next" / CHECKPOINT_FOLDER)):  # as the trainer does
        assert verify_checkpoint(fetch_checkpoint(str(tmp_path / "next"), stored.path), stored.manifest) == ""


def test_a_damaged_checkpoint_is_not_handed_to_the_trial_nor_offered_again(
    tmp_path: Path, job: Path, place: Path
) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    (place / "1" / "model.pt").write_bytes(b"v" * 4096)
    assert verify_stored(stored.path, stored.manifest) == "", "its content is read where it is downloaded"
    with pytest.raises(
        CheckpointError, match=r"model.pt is damaged: .* not offered again: another attempt of the trial"
    ):
        fetch_checkpoint(str(tmp_path / "next"), stored.path)
    assert "has no manifest" in verify_stored(stored.path, stored.manifest)
    assert list((tmp_path / "next").rglob("*.pt")) == []


@pytest.mark.parametrize("own", ["", "file:///storage/e10/t1/2"])
def test_a_damaged_checkpoint_of_another_experiment_is_left_as_it_is(
    tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """As a trial in a copied home is handed, which stores its own elsewhere."""
    stored = save(write_files(tmp_path / "source"), job)
    (place / "1" / "model.pt").write_bytes(b"v" * 4096)
    monkeypatch.setenv("PROCTOR_CHECKPOINT_STORAGE", own)
    with pytest.raises(CheckpointError, match=r"model.pt is damaged"):
        fetch_checkpoint(str(tmp_path / "next"), stored.path)
    assert verify_stored(stored.path, stored.manifest) == ""


def test_the_manager_learns_of_a_damaged_checkpoint_even_if_its_manifest_cannot_be_removed(
    tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    stored = save(write_files(tmp_path / "source"), job)
    (place / "1" / "model.pt").write_bytes(b"v" * 4096)
    following = tmp_path / "next"
    begin_attempt(monkeypatch, following, resume=stored.path)
    monkeypatch.setattr(LocalFileSystem, "rm_file", refuse(errno.EACCES))
    with pytest.raises(DamagedCheckpointError, match=r"model.pt is damaged"):
        get_checkpoint()
    (record,) = [json.loads(line) for line in (following / journal_name(0)).read_text().splitlines()]
    assert (record["kind"], record["damaged"]) == ("lost", stored.path)
    assert "model.pt is damaged" in record["why"]


def test_a_damaged_checkpoint_that_a_full_disk_keeps_from_being_named_is_no_lost_report(
    tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    (place / "1" / "model.pt").write_bytes(b"v" * 4096)
    begin_attempt(monkeypatch, tmp_path / "next", resume=stored.path)
    monkeypatch.setenv("PROCTOR_REPORT_WAIT_SECONDS", "0")
    with monkeypatch.context() as full:
        full.setattr(os, "write", refuse(errno.ENOSPC))
        with pytest.raises(DamagedCheckpointError, match=r"model.pt is damaged"):
            get_checkpoint()
    report(1.0)
    lines = (tmp_path / "next" / journal_name(0)).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["intermediate"]


def test_who_only_looks_at_a_damaged_checkpoint_leaves_it_as_it_is(tmp_path: Path, job: Path, place: Path) -> None:
    stored = save(write_files(tmp_path / "source"), job)
    (place / "1" / "model.pt").write_bytes(b"v" * 4096)
    with pytest.raises(CheckpointError, match=r"model\.pt is damaged"):
        download(stored.path, f"{tmp_path}/copy")
    assert verify_stored(stored.path, stored.manifest) == ""


def test_a_storage_that_cannot_be_read_is_tried_again_until_patience_ends(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the checkpoint could not be read: file://.*/nothing cannot be read: "):
        download(f"file://{tmp_path}/nothing", str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_what_cannot_be_uploaded_is_said_and_removed(
    tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "storage").touch()
    refusal = save_checkpoint(str(write_files(tmp_path / "source")), str(job))
    assert refusal == "a checkpoint could not be stored: the storage did not take it"
    assert f"file://{place}/1 cannot be written: " in capsys.readouterr().err
    assert list((job / "output/checkpoints").iterdir()) == []


def test_a_missing_library_is_a_mistake_of_the_environment(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_CHECKPOINT_STORAGE", "file:///anywhere")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(CheckpointError, match="cannot be stored: "):
        save_checkpoint(str(write_files(tmp_path / "source")), str(job))


def test_deleting_begins_with_the_manifest_and_may_be_repeated(
    tmp_path: Path, job: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    stored = save(write_files(tmp_path / "source"), job)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "rm", refuse(errno.EACCES))
        with pytest.raises(StorageError, match=r"cannot be deleted: .*Permission denied"):
            delete_stored(stored.path)
    assert "has no manifest" in verify_stored(stored.path, stored.manifest)
    for _ in range(2):
        delete_stored(stored.path)
        assert not (place / "1").exists()


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    url = f"file://{tmp_path}/storage"
    assert not probe(url, mark="mark")
    assert list((tmp_path / "storage").iterdir()) == []
    (tmp_path / "storage" / "mark").touch()
    assert probe(url, mark="mark")
    assert [path.name for path in (tmp_path / "storage").iterdir()] == ["mark"]
    with pytest.raises(StorageError, match=r"cannot be used: .*nosuch"):
        probe("nosuch://bucket/folder")


def test_a_place_that_two_processes_do_not_share_is_refused_with_what_to_do() -> None:
    with pytest.raises(StorageError) as caught:
        probe("memory://checkpoints")
    text = "memory://checkpoints cannot be used: what one process stores there, another one does not find ("
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith("); name a folder that all nodes share, or a URL of an object store")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_manifest_that_names_files_outside_is_refused(tmp_path: Path, name: str) -> None:
    manifest = json.dumps({"format": 1, "files": {name: [1, "0" * 64]}}).encode()
    with pytest.raises(ValueError, match="outside of the checkpoint"):
        read_manifest(manifest)
    write_files(tmp_path / "stored", {MANIFEST_FILE: manifest})
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        download(f"file://{tmp_path}/stored", str(tmp_path / "copy"))


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"files": {"a": 3}}', b"\xff", b"no JSON"])
def test_what_is_no_manifest_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"manifest|decode|JSON|Expecting"):
        read_manifest(data)
