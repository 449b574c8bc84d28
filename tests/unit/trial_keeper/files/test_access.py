"""Reading a job's files, and nothing else."""

import os
from pathlib import Path

import pytest

from proctor.trial_keeper.files.access import list_files, read_file


@pytest.fixture
def job(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    (job / "output").mkdir(parents=True)
    (job / "stdout").write_bytes(b"0123456789")
    (job / "output" / "model").write_bytes(b"weights")
    (tmp_path / "secret").write_bytes(b"token")
    (tmp_path / "jobs-neighbor").mkdir()
    (tmp_path / "jobs-neighbor" / "stdout").write_bytes(b"another")
    return job


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [(0, 4, b"0123"), (8, 100, b"89"), (-3, 100, b"789"), (-100, 2, b"01"), (10, 5, b""), (99, 5, b""), (0, 0, b"")],
)
def test_a_part_of_a_file_is_read(job: Path, offset: int, limit: int, expected: bytes) -> None:
    assert read_file(str(job), "stdout", offset, limit) == expected


@pytest.mark.parametrize(
    "path",
    ["../secret", "output/../../secret", "../jobs-neighbor/stdout", "", ".", "..", "missing", "output", "a\0b"],
)
def test_what_is_not_a_file_inside_is_not_found(job: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(str(job), path, 0, 10)


def test_an_absolute_path_is_not_found_even_when_it_points_inside(job: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(str(job), str(job / "stdout"), 0, 10)


def test_a_link_that_leaves_the_directory_is_not_found(job: Path) -> None:
    (job / "link").symlink_to(job.parent / "secret")
    (job / "folder").symlink_to(job.parent)
    for path in ("link", "folder/secret"):
        with pytest.raises(FileNotFoundError):
            read_file(str(job), path, 0, 10)


def test_a_pipe_is_not_waited_for(job: Path) -> None:
    os.mkfifo(job / "pipe")
    with pytest.raises(FileNotFoundError, match="regular"):
        read_file(str(job), "pipe", 0, 10)


def test_regular_files_are_listed_with_their_sizes(job: Path) -> None:
    os.mkfifo(job / "pipe")
    (job / "link").symlink_to(job.parent / "secret")
    os.utime(job / "stdout", (1000.5, 1000.5))
    found = list_files(str(job))
    assert [(file.path, file.size) for file in found] == [("output/model", 7), ("stdout", 10)]
    assert found[1].modified == 1000.5
    assert list_files(str(job / "missing")) == []
