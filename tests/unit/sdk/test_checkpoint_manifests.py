"""Manifests: what a checkpoint consists of is recorded when it is stored, and verified before it is used."""

import errno
import json
import os
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from fakes.descriptors import no_descriptors
from fakes.full_disk import refuse
from fakes.saved_checkpoints import FILES, save, write_files

from proctor.sdk.checkpoints import saving
from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, verify_checkpoint
from proctor.sdk.checkpoints.saving import StoredCheckpoint, save_checkpoint
from proctor.sdk.errors import CheckpointError


def store(source: Path, job: Path) -> tuple[StoredCheckpoint, Path]:
    stored = save(source, job)
    return stored, job / stored.path


def verdict(stored: StoredCheckpoint, place: Path) -> str:
    return verify_checkpoint(str(place), stored.manifest)


def test_a_checkpoint_has_a_manifest_of_all_its_files(tmp_path: Path) -> None:
    stored, place = store(write_files(tmp_path / "source"), tmp_path / "job")
    data = (place / MANIFEST_FILE).read_bytes()
    expected = {name: [len(content), sha256(content).hexdigest()] for name, content in FILES.items()}
    assert json.loads(data) == {"format": 1, "files": expected}
    assert (stored.path, stored.size) == ("output/checkpoints/1", 4097)
    assert stored.manifest == sha256(data).hexdigest()
    assert verdict(stored, place) == ""
    assert list((tmp_path / "source").rglob(MANIFEST_FILE)) == []


def flip_byte(place: Path) -> None:
    (place / "model.pt").write_bytes(b"w" * 2048 + b"v" + b"w" * 2047)


def truncate(place: Path) -> None:
    os.truncate(place / "model.pt", 12)


def replace_manifest(place: Path) -> None:
    flip_byte(place)
    digest = sha256((place / "model.pt").read_bytes()).hexdigest()
    (place / MANIFEST_FILE).write_text(json.dumps({"format": 1, "files": {"model.pt": [4096, digest]}}))


def replace_by_pipe(place: Path) -> None:
    (place / "state" / "empty").unlink()
    os.mkfifo(place / "state" / "empty")


def remove_all(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("damage", "clause"),
    [
        (truncate, "model.pt has 12 bytes, 4,096 expected"),
        (flip_byte, "model.pt is damaged: its content is not what was saved"),
        (lambda place: (place / "model.pt").unlink(), "model.pt is missing"),
        (lambda place: (place / "state").rename(place / "elsewhere"), "state/empty is missing"),
        (lambda place: (place / MANIFEST_FILE).unlink(), "its manifest cannot be read: No such file or directory"),
        (replace_by_pipe, "state/empty is no longer a file"),
        (replace_manifest, "its manifest is not the one that was registered"),
        (remove_all, "its folder is gone"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_named(
    tmp_path: Path, damage: Callable[[Path], object], clause: str
) -> None:
    stored, place = store(write_files(tmp_path / "source"), tmp_path / "job")
    damage(place)
    assert verdict(stored, place) == clause


def test_a_checkpoint_that_cannot_be_read_for_lack_of_descriptors_is_not_damaged(tmp_path: Path) -> None:
    stored = save(write_files(tmp_path / "model"), tmp_path / "job")
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        verify_checkpoint(str(tmp_path / "job" / stored.path), stored.manifest)
    assert verify_checkpoint(str(tmp_path / "job" / stored.path), stored.manifest) == ""


def test_a_checkpoint_of_an_earlier_version_is_whole_if_its_folder_is_there(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "1")
    assert verify_checkpoint(str(folder), None) == ""
    assert verify_checkpoint(str(tmp_path / "2"), None) == "its folder is gone"


def test_the_manifest_of_another_checkpoint_is_not_copied(tmp_path: Path) -> None:
    _, first = store(write_files(tmp_path / "source"), tmp_path / "job")
    (first / "model.pt").write_bytes(b"continued")  # in place, with a link to a whole one
    (first / "runs").mkdir()
    (first / "runs" / "other").symlink_to(write_files(tmp_path / "other"))
    (tmp_path / "other" / MANIFEST_FILE).write_text("another one's")
    stored, second = store(first, tmp_path / "job")
    assert [str(path.relative_to(second)) for path in second.rglob(MANIFEST_FILE)] == [MANIFEST_FILE]
    files = json.loads((second / MANIFEST_FILE).read_bytes())["files"]
    assert files.keys() == {*FILES, *(f"runs/other/{name}" for name in FILES)}
    assert not (second / "runs" / "other").is_symlink()
    assert verdict(stored, second) == ""


def test_a_file_that_changes_while_it_is_copied_is_hashed_as_it_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy_bytes = write_files(tmp_path / "source"), saving._copy_bytes

    def copy_and_append(reader: int, writer: int) -> None:
        copy_bytes(reader, writer)
        with open(source / "model.pt", "ab") as file:
            file.write(b"more")

    monkeypatch.setattr(saving, "_copy_bytes", copy_and_append)
    stored, place = store(source, tmp_path / "job")
    assert verdict(stored, place) == ""


def test_a_name_that_is_no_utf_8_is_verified_and_printed(tmp_path: Path) -> None:
    source = write_files(tmp_path / "source")
    name = os.fsdecode(b"caf\xe9\n")
    (source / name).write_bytes(b"1")
    stored, place = store(source, tmp_path / "job")
    assert verdict(stored, place) == ""
    (place / name).write_bytes(b"12")
    assert verdict(stored, place) == r"'caf\udce9\n' has 2 bytes, 1 expected"


def test_where_no_thread_can_be_started_the_copies_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    stored, place = store(write_files(tmp_path / "source"), tmp_path / "job")
    assert verdict(stored, place) == ""


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    store(write_files(tmp_path / "source"), tmp_path / "job")
    (tmp_path / "source" / "zz-dangling").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="zz-dangling"):
        save_checkpoint(str(tmp_path / "source"), str(tmp_path / "job"))
    assert threading.active_count() == before


def test_files_that_are_never_written_to_again_are_registered_in_place(tmp_path: Path) -> None:
    source, own = write_files(tmp_path / "source"), write_files(tmp_path / "own", {"best": b"b" * 99})
    (source / "best").symlink_to(own / "best")
    stored = save_checkpoint(str(source), str(tmp_path / "job"), shares_files=True)
    assert isinstance(stored, StoredCheckpoint)
    place = tmp_path / "job" / stored.path
    assert all((place / name).samefile(source / name) for name in FILES)
    assert (place / "best").samefile(own / "best")
    assert not (place / "best").is_symlink()
    assert verdict(stored, place) == ""
    for path in (source / "model.pt", own / "best"):  # replaced, as the trainer does
        path.unlink()
        path.write_bytes(b"another")
    assert verdict(stored, place) == ""


def test_where_the_file_system_has_no_links_such_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_files(tmp_path / "source")
    monkeypatch.setattr(os, "link", refuse(errno.EXDEV))
    stored = save_checkpoint(str(source), str(tmp_path / "job"), shares_files=True)
    assert isinstance(stored, StoredCheckpoint)
    place = tmp_path / "job" / stored.path
    (source / "model.pt").write_bytes(b"changed")
    assert verdict(stored, place) == ""
