"""Files are replaced as a whole, and nothing half-written stays; locks end with their holders."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes.full_disk import refuse

from proctor.sdk.files import (
    discard,
    hash_file,
    is_locked,
    last_lines,
    link_file,
    lock_file,
    name_beside,
    open_locked,
    put_in_place,
    remove_file,
    remove_tree,
    replace_file,
    unlock_file,
)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"", b"x" * 100_000):
        replace_file(str(path), data, durable=durable, mode=0o640)
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_put_in_place_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(OSError):
        replace_file(str(tmp_path / "missing" / "file"), b"x", durable=False)
    with pytest.raises(OSError):
        replace_file(str(tmp_path / "folder"), b"x", durable=False)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_writer_has_left_goes_with_the_next_replacement(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.new").write_text("half of some longer te")
    replace_file(str(path), b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def put_second_name(path: Path) -> None:
    (path.parent / "elsewhere").touch()
    path.hardlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("put", [put_pipe, put_link, put_second_name])
def test_what_others_have_put_beside_a_file_is_neither_opened_nor_followed(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "file.new")
    replace_file(tmp_path / "file", b"new", durable=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere").read_bytes() == b""
    assert not (tmp_path / "file.new").exists()


def test_several_threads_replace_a_file_under_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(number: int) -> None:
        for _ in range(50):
            replace_file(path, b"%d" % number * 1000, durable=False, unfinished=name_beside(path, of_thread=True))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len(set(path.read_bytes())) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("durable", "syncs_folder", "synced"), [(True, True, 2), (True, False, 1), (False, True, 0)])
def test_a_durable_file_is_synced_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, syncs_folder: bool, synced: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    replace_file(tmp_path / "file", b"x", durable=durable, syncs_folder=syncs_folder)
    assert len(calls) == synced


def test_a_folder_is_put_in_place_where_none_holds_anything(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    put_in_place(tmp_path / "first", tmp_path / "folder")
    with pytest.raises(OSError):
        put_in_place(tmp_path / "second", tmp_path / "folder")
    discard(tmp_path / "folder")
    put_in_place(tmp_path / "second", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_lock_is_held_by_one_process_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        is_locked(path)
    holding = open_locked(path)
    assert holding is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_locked(path) is None
    assert is_locked(path)
    unlock_file(holding)
    assert not is_locked(path)
    assert lock_file(holding, waits=True)
    os.close(holding)
    assert not is_locked(path)


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    first, second, third = (os.open(path, os.O_RDONLY) for _ in range(3))
    try:
        assert lock_file(first, shared=True)
        assert lock_file(second, shared=True)
        assert not lock_file(third)
    finally:
        for descriptor in (first, second, third):
            os.close(descriptor)


def test_a_lock_that_the_file_system_does_not_know_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No locks available"):
        open_locked(tmp_path / "lock")
    assert is_locked(tmp_path / "lock")
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_are_hashed_in_pieces(tmp_path: Path) -> None:
    for data in (b"", b"x", bytes(5 << 20)):
        (tmp_path / "file").write_bytes(data)
        assert hash_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_a_second_name_never_replaces_another_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"new")
    link_file(tmp_path / "file", tmp_path / "second")
    assert (tmp_path / "second").samefile(tmp_path / "file")
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        link_file(tmp_path / "file", tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == b"other"


def test_what_is_removed_already_may_be_removed_again(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("link", "link", "folder", "folder"):
        remove_tree(str(tmp_path / name))
        assert (tmp_path / "folder").exists() == (name == "link")
    remove_file(tmp_path / "folder")


@pytest.mark.parametrize(
    ("content", "begin", "found"),
    [
        ("", 0, []),
        ("one\n\n two \n\n", 0, ["one", "two"]),
        ("one\ntwo\nthree\nfour", 0, ["two", "three", "four"]),
        ("one\ntwo\nthree\n", 4, ["two", "three"]),
        ("x" * 20 + "\nthe end\n", 0, ["x" * 11, "the end"]),
    ],
    ids=["empty", "blank lines", "many", "behind an offset", "long"],
)
def test_the_last_lines_of_a_file(tmp_path: Path, content: str, begin: int, found: "list[str]") -> None:
    path = tmp_path / "log"
    path.write_text(content)
    with path.open("rb") as file:
        assert last_lines(file.fileno(), 3, begin=begin, most_bytes=20) == found
