"""Why a file could not be written by SFTP."""

import pytest

from proctor.training_services.ssh.errors import NoRoom, NotWritable
from proctor.training_services.ssh.uploads import Room, failure

MIB = 2**20


@pytest.mark.parametrize(
    ("code", "free", "kind", "text"),
    [
        (4, Room(0, 100), NoRoom, "its disk is full (code/x could not be written, 0 MiB free); make room there"),
        (4, Room(500 * MIB, 0), NoRoom, "its disk is full (code/x could not be written, 500 MiB free, no inodes free)"),
        (14, Room(), NoRoom, "its disk is full (code/x could not be written); make room there"),
        (15, Room(500 * MIB, 9), NoRoom, "the quota is used up"),
        (3, Room(500 * MIB, 9), NotWritable, "code/x cannot be written there (permission denied)"),
        (2, Room(500 * MIB, 9), NotWritable, "code/x cannot be written there (no such folder)"),
        (4, Room(500 * MIB, 9), NoRoom, "failed (Failure); 500 MiB are free, so a quota may be used up"),
        (4, Room(500 * MIB, 9, True), NoRoom, "its disk is read-only (code/x could not be written); mount it writable"),
        (4, Room(), NotWritable, "writing code/x by SFTP failed (Failure)"),
    ],
)
def test_the_reason_is_told_from_the_code_and_from_what_is_free(
    code: int, free: Room, kind: type[Exception], text: str
) -> None:
    error = failure("code/x", code, "Failure", free=free)
    assert type(error) is kind
    assert text in str(error)
