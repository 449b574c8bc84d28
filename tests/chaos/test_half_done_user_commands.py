"""What cannot be done, or is killed on the way, leaves nothing behind: a create on a full disk, a client that loads."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import EXPERIMENT_ID, TRIAL_SCRIPT, House, house, save_archive
from fakes.disks import Disk, ext4_disk

from proctor.sdk.client.errors import NotFound, ProblemError

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4_disk(tmp_path) as made:
        yield made


def config(built: House, **changes: Any) -> Mapping[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [0.4, 0.6]}},
        "trialCommand": built.trial_command(steps=1, seconds=(0.05, 0.1)),
        "trialCodeDirectory": str(TRIAL_SCRIPT.parent),
        "trialConcurrency": 2,
        "maxTrialNumber": 2,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }


def test_a_create_on_a_full_disk_is_refused_and_leaves_nothing(disk: Disk, tmp_path: Path) -> None:
    work = disk.folder / "work"
    work.mkdir()
    with house(tmp_path) as built:
        wanted = config(built, experimentWorkingDirectory=str(work))
        disk.fill()
        with pytest.raises(ProblemError) as refused:
            built.ask_once(
                lambda client: client.create_experiment(
                    wanted, directory=TRIAL_SCRIPT.parent, experiment_id=EXPERIMENT_ID
                )
            )
        assert refused.value.status_code == 503
        assert "cannot write the experiment's folder" in str(refused.value)
        assert list(work.iterdir()) == []
        with pytest.raises(NotFound):
            built.ask_once(lambda client: client.experiment(EXPERIMENT_ID))
        disk.free()
        built.create(wanted)
        built.wait_until_done()
        built.shut_down()


def test_the_archive_of_a_client_that_was_killed_while_it_loaded_goes_when_the_manager_starts(tmp_path: Path) -> None:
    archive = tmp_path / "saved.zip"
    with house(tmp_path) as built:
        built.create(config(built))
        built.wait_until_done()
        built.stop_experiment()
        built.ask(lambda client: save_archive(client, archive) or True)
        built.ask(lambda client: client.delete_experiment(EXPERIMENT_ID) or True)

        os.kill(built.manager_pid, signal.SIGSTOP)  # it answers no request
        incoming = built.home / "incoming"
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "proctor.manager.cli.main", "experiment", "load", "--path", str(archive)],
            env={**os.environ, "PROCTOR_HOME": str(built.home)},
            stdout=subprocess.DEVNULL,
        ) as client:
            size = archive.stat().st_size
            built.wait_for(lambda: [p for p in incoming.glob("*.zip") if p.stat().st_size == size] or None, "the copy")
            client.kill()
        (left,) = incoming.glob("*.zip")
        os.utime(left, (0, left.stat().st_mtime - 60.0))  # that was a minute ago
        os.kill(built.manager_pid, signal.SIGKILL)
        assert built.ask(lambda client: list(client.experiments())) == []
        assert list(incoming.glob("*.zip")) == []
        built.shut_down()
