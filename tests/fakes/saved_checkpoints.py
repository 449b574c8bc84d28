"""Folders that a trial saves as its checkpoints."""

from collections.abc import Mapping
from pathlib import Path

from proctor.sdk.checkpoints.saving import StoredCheckpoint, save_checkpoint

FILES = {"model.pt": b"w" * 4096, "state/step": b"3", "state/empty": b""}


def write_files(folder: Path, files: "Mapping[str, bytes]" = FILES) -> Path:
    """Make a folder that holds these."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def save(folder: Path, job: Path) -> StoredCheckpoint:
    """Save a folder as a checkpoint of a job."""
    stored = save_checkpoint(str(folder), str(job))
    assert isinstance(stored, StoredCheckpoint), stored
    return stored
