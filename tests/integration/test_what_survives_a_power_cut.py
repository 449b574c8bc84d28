"""What a process of ours relies on after a power cut is on the disk when the call that makes it returns.

Each case does one thing on a small ext4 disk; the block device is copied at once, and the copy must hold it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.disks import Disk, ext4_disk, mounted

from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.dispatcher.algorithms.registered import RegisteredAlgorithm, register
from proctor.manager.dispatcher.host.custom import SavedPosition, SavedState
from proctor.manager.engine import creation
from proctor.manager.security import Tokens
from proctor.manager.settings import Home
from proctor.sdk.files import sync_tree
from proctor.sdk.tuner import Tuner
from proctor.training_services.files.collection import CollectionNote
from proctor.training_services.remote.machines.records import NodeDirectory, NodeRecord
from proctor.training_services.ssh.host_keys import HostKeys
from proctor.trial_keeper.jobs.records import JobRecord, RecordFolder
from proctor.trial_keeper.journal_tail import Anchor, write_anchor
from proctor.trial_keeper.protocol import Launch


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4_disk(tmp_path, megabytes=16) as made:
        yield made


class SavingTuner(Tuner):
    """Keeps its state beside its mark, as a user's tuner does: without syncing anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save_checkpoint(self) -> None:
        (self.folder / "state").write_text("what it knows")


def make_home(folder: Path) -> None:
    home = Home(folder / "state" / "proctor")
    home.prepare()
    Tokens.of(home)


def make_identity(folder: Path) -> None:
    Home(folder).manager_id()


def register_algorithm(folder: Path) -> None:
    register(folder / "home", RegisteredAlgorithm("mine", "tuner", "module.Class", "/code"))


def create_experiment(folder: Path) -> None:
    code = folder / "code"
    (code / "inner").mkdir(parents=True)
    (code / "inner" / "trial.py").write_text("print(1)")
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialCodeDirectory": str(code),
        "codeSnapshot": True,
        "trialConcurrency": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }
    loaded = load_experiment_mapping(config, str(folder))
    handover = creation.CreationRequest({"environment": {"A": "1"}}, {"training_service.password": "secret"})
    creation.write_folder(folder / "somewhere" / "else" / "E", loaded, handover)


def write_node(folder: Path) -> None:
    node = NodeDirectory(folder / "nodes", "gpu-1")
    node.write(NodeRecord("gpu-1", "bob@gpu-1"))
    node.secret()


def remember_host_key(folder: Path) -> None:
    HostKeys(folder / "nodes" / "known_hosts").remember("gpu-1 ssh-ed25519 AAAA")


def note_collection(folder: Path) -> None:
    CollectionNote(left=(), whole=("output",)).write(folder / "trials" / "0-T" / "jobs" / "1")


def save_state(folder: Path) -> None:
    tuner = SavingTuner(folder / "checkpoint")
    SavedState(str(folder / "checkpoint"), "tuner", tuner, Tuner).save(SavedPosition(7, (1, 2)))


def write_job_record(folder: Path) -> None:
    records = RecordFolder(folder / "jobs")
    records.read_all()
    launch = Launch("T.1", "token", "E", "T", 0, "/job", "true", "/", "{}", None)
    records.write([JobRecord(launch, "boot")])


def anchor_journal(folder: Path) -> None:
    write_anchor(str(folder), "0", Anchor(10, 5, "mark\n"))


@pytest.mark.parametrize(
    "make",
    [
        make_home,
        make_identity,
        register_algorithm,
        create_experiment,
        write_node,
        remember_host_key,
        note_collection,
        save_state,
        write_job_record,
        anchor_journal,
    ],
)
def test_it_is_on_the_disk_when_the_call_returns(make: Callable[[Path], None], disk: Disk, tmp_path: Path) -> None:
    make(disk.folder)
    made = contents(disk.folder)
    disk.cut_off(tmp_path / "cut.image")
    assert made, "something was made"
    with mounted(tmp_path / "cut.image", tmp_path / "after") as after:
        assert contents(after.folder) == made


def test_an_experiment_that_was_deleted_does_not_come_back(disk: Disk, tmp_path: Path) -> None:
    create_experiment(disk.folder)
    sync_tree(str(disk.folder))
    experiment = Path("somewhere/else/E")
    creation.remove_folder(disk.folder / experiment)
    disk.cut_off(tmp_path / "cut.image")
    with mounted(tmp_path / "cut.image", tmp_path / "after") as after:
        assert not (after.folder / experiment).exists()


def test_a_state_that_a_tuner_was_writing_over_is_not_taken_for_a_whole_one(disk: Disk, tmp_path: Path) -> None:
    class Interrupted(SavingTuner):
        def save_checkpoint(self) -> None:
            (self.folder / "state").write_text("")
            disk.cut_off(tmp_path / "cut.image")

    folder = disk.folder / "checkpoint"
    SavedState(str(folder), "tuner", SavingTuner(folder), Tuner).save(SavedPosition(7))
    sync_tree(str(folder))
    SavedState(str(folder), "tuner", Interrupted(folder), Tuner).save(SavedPosition(9))
    with mounted(tmp_path / "cut.image", tmp_path / "after") as after:
        left = after.folder / "checkpoint"
        assert SavedState(str(left), "tuner", SavingTuner(left), Tuner).load() == SavedPosition()


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder with its text; the user's own code lies where it was."""
    return {
        str(path.relative_to(folder)): "folder" if path.is_dir() else json.dumps(path.read_text())
        for path in sorted(folder.rglob("*"))
        if "lost+found" not in path.parts and path.relative_to(folder).parts[0] != "code"
    }
