"""Room on the disk that is allocated beforehand."""

import os
from pathlib import Path

import pytest

from proctor.trial_keeper.linux.files import allocate_file

MORE_THAN_ANY_DISK = 2**62


def test_where_there_is_no_room_nothing_of_the_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    with pytest.raises(OSError):
        allocate_file(str(path), MORE_THAN_ANY_DISK)
    assert os.listdir(tmp_path) == []
    allocate_file(str(path), 4096)
    assert (path.stat().st_size, path.stat().st_blocks * 512) == (4096, 4096)
