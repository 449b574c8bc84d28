"""A run's checkpoints as tests write them: small, and each holds its own number."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from proctor.sdk.pytorch import TrainingState
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.serialization import copy_content, write_content


class CheckpointWriter:
    """A run that saves: each checkpoint holds its own number.

    What a test leaves open is closed behind it, as `opened` has it.
    """

    opened: ClassVar["list[CheckpointWriter]"] = []

    def __init__(self, root: Path, name: str = "run", *, anew: bool = False, **options: Any) -> None:
        self.root = root
        self.storage = CheckpointFolder(root, name, **options)
        self.storage.open(anew=anew)
        self.opened.append(self)

    def save(self, number: int, **options: Any) -> Path:
        """Save, and wait until it is stored."""
        state = TrainingState(global_epoch=1 + number // 10, current_iteration=number, global_iteration=number)
        content = {
            "format": 1,
            "version": "0.1.0",
            "training_state": state.state_dict(),
            "model": {"weight": torch.full((4,), float(number))},
            "rng": [],
        }
        path = self.storage.save(content, **options)
        self.storage.wait()
        return path

    def start_again(self, **options: Any) -> "CheckpointWriter":
        """End this start of the run and return the next one."""
        self.storage.close()
        return CheckpointWriter(self.root, self.storage.run_name, **options)

    def export(self, folder: Path) -> Path:
        """What goes to another folder, in one that is made for it."""
        folder.mkdir()
        self.storage.export(folder)
        return folder

    def newest(self) -> Any:
        """What a run would continue from."""
        loaded = self.storage.load_newest()
        assert loaded is not None, "there is no checkpoint"
        return loaded

    def names(self) -> "list[str]":
        """The files of the checkpoints that there are."""
        return sorted(path.name for path in self.storage.path.glob("*.pth"))


def write_run(root: Path, saves: "Iterable[int] | Mapping[int, float | None]", **options: Any) -> CheckpointWriter:
    """A run that has saved these, perhaps with scores, and has ended."""
    writer = CheckpointWriter(root, **options)
    for number, score in (saves if isinstance(saves, Mapping) else dict.fromkeys(saves)).items():
        writer.save(number, score=score)
    writer.storage.close()
    return writer


def numbers(storage: CheckpointFolder) -> "list[int]":
    """The numbers of the checkpoints that the pointer names, newest first."""
    return [entry.iteration for entry in storage.entries()]


def write_checkpoint(path: Path, content: "dict[str, Any]", safe_types: "Sequence[type]" = ()) -> None:
    """Write a file as a run writes its checkpoints."""
    copied = copy_content(content, safe_types)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_content(copied, descriptor)
    finally:
        os.close(descriptor)
