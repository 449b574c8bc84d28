"""A small disk of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.disks import Disk, ext4_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4_disk(tmp_path, megabytes=32, inodes=512) as made:
        yield made
