"""What the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.checkpoint_writer import CheckpointWriter


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """One thread for torch: these models are so small that a second one only costs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def writer(tmp_path: Path) -> "Iterator[CheckpointWriter]":
    """A folder of checkpoints that is open for writing."""
    found = CheckpointWriter(tmp_path)
    yield found
    found.storage.close()
