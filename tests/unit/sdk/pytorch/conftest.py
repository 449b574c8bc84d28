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


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    """Let go of the folders that a test has written to."""
    yield
    while CheckpointWriter.opened:
        CheckpointWriter.opened.pop().storage.close()


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    """A folder of checkpoints that is open for writing."""
    return CheckpointWriter(tmp_path)
