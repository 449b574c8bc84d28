"""Checkpoints that are stored where `checkpointStorage` says: in a folder that nodes share, and in a real S3 server."""

import json
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.real_manager import RealManager, real_manager
from fakes.s3_server import BUCKET, OWNER, READER, S3Server, s3_server, stored_in

from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.client.errors import BadInput, ManagerFault

pytestmark = pytest.mark.slow

SAVES_SIX = """
import os, sys, tempfile, time
import proctor

proctor.get_next_parameter()
found = proctor.get_checkpoint()
first = 1 + (int(open(found + "/step").read()) if found else 0)
for step in range(first, 7):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/state")
        for name, content in (("step", str(step)), ("weights", "w" * 100_000), ("state/empty", "")):
            with open(folder + "/" + name, "w") as file:
                file.write(content)
        proctor.report(step, checkpoint=folder, step=step)
    while step == 3 and not proctor.should_stop():
        time.sleep(0.02)
    if proctor.should_stop():
        sys.exit(0)
proctor.report_final_result(first)
"""
SECRET = OWNER["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as made:
        yield made


def storage(server: S3Server, user: dict[str, str] = OWNER, location: str = "") -> dict[str, Any]:
    """An experiment whose checkpoints are stored in the server, by trials that can import what that needs."""
    return {**stored_in(server, user, location), "interpreter": sys.executable}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that nodes share."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def await_reports(manager: RealManager, experiment: str, count: int) -> str:
    """Wait until the experiment's trial has reported so often; its id."""
    manager.until(lambda: [trial["intermediate_count"] for trial in manager.trials(experiment)] == [count], "reports")
    return str(manager.trials(experiment)[0]["id"])


def pause_and_resume(manager: RealManager, experiment: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Have the experiment's trial stop after its third checkpoint, and ask it to continue.

    :param meanwhile: what happens while it is PAUSED.
    """
    trial = await_reports(manager, experiment, 3)
    manager.client.pause_trial(trial)
    manager.until(lambda: manager.trials(experiment)[0]["status"] == "PAUSED", "the trial to be PAUSED")
    meanwhile()
    manager.client.resume_trial(trial)


def continued(manager: RealManager, experiment: str) -> dict[str, Any]:
    """The experiment's trial, which has continued from its third checkpoint to its end."""
    manager.until_status(experiment, "DONE")
    (trial,) = manager.trials(experiment)
    assert trial["final_value"] == 4
    curve = [point["value"] for point in manager.client.trial_curve(trial["id"])]
    assert curve == [1, 2, 3, 4, 5, 6]
    return trial


def kept_paths(manager: RealManager, trial: dict[str, Any]) -> list[str]:
    return [row["path"] for row in manager.client.checkpoints(trial["id"]) if row["deleted_at"] is None]


def job_folders(trial: dict[str, Any]) -> list[Path]:
    """What its jobs have left among their own files."""
    return [path for job in (1, 2) for path in Path(trial["directory"], "jobs", str(job)).rglob("checkpoints/*")]


def test_a_trial_waits_for_a_folder_that_nodes_share_and_continues_from_it(
    manager: RealManager, shared: Path, tmp_path: Path
) -> None:
    experiment = manager.create(SAVES_SIX, maxTrialNumber=1, checkpointStorage=str(shared))
    pause_and_resume(manager, experiment, meanwhile=lambda: shared.rename(tmp_path / "unmounted"))
    expected = f"cannot store checkpoints: there is no folder {shared}; mount what the nodes share, or create it"
    manager.until(lambda: expected in manager.trials(experiment)[0]["reason"], expected)
    (tmp_path / "unmounted").rename(shared)
    trial = continued(manager, experiment)
    place = shared / experiment / trial["id"] / "2"
    assert kept_paths(manager, trial) == [f"{place}/2", f"{place}/3"]
    manager.until(lambda: sorted(path.name for path in place.iterdir()) == ["2", "3"], "the others to be deleted")
    manager.until(lambda: not any((shared / experiment / trial["id"] / "1").iterdir()), "those of the first job")
    assert job_folders(trial) == []
    last = list(manager.client.checkpoints(trial["id"]))[-1]
    assert (last["is_here"], verify_checkpoint(last["path"], last["manifest"])) == (True, "")
    manager.client.download_checkpoint(trial["id"], last["id"], tmp_path / "copy")
    assert (tmp_path / "copy" / "step").read_text() == "6"
    manager.command_line("experiment", "delete", experiment, "-y")
    assert list(shared.iterdir()) == []


@pytest.mark.thorough
def test_a_trial_continues_from_an_object_store(manager: RealManager, server: S3Server, tmp_path: Path) -> None:
    experiment = manager.create(SAVES_SIX, maxTrialNumber=1, **storage(server))
    pause_and_resume(manager, experiment)
    trial = continued(manager, experiment)
    place = f"{server.url}/{experiment}/{trial['id']}"
    assert kept_paths(manager, trial) == [f"{place}/2/2", f"{place}/2/3"]
    stored = place.removeprefix("s3://")

    def is_pruned() -> bool:
        return {path[len(stored) + 1 :].rpartition("/weights")[0] for path in server.system().find(stored)} == {
            "",
            "2/2",
            "2/3",
        }

    manager.poll_for(is_pruned, "the others to be deleted")
    assert job_folders(trial) == [], "what was uploaded or downloaded takes no room on the node"
    last = list(manager.client.checkpoints(trial["id"]))[-1]
    assert (last["is_here"], last["size_bytes"]) == (False, 100_001)
    manager.client.download_checkpoint(trial["id"], last["id"], tmp_path / "copy")
    assert verify_checkpoint(str(tmp_path / "copy"), last["manifest"]) == ""

    shown = json.dumps([manager.client.experiment(experiment), manager.client.trial(trial["id"])])
    databases = b"".join(path.read_bytes() for path in manager.home.rglob("*.db*"))
    assert SECRET not in shown
    assert SECRET.encode() not in databases
    manager.command_line("experiment", "delete", experiment, "-y")
    left = server.system().find(f"{BUCKET}/proctor")
    assert [path for path in left if f"/{experiment}/" in path] == []


def test_one_flipped_bit_in_an_object_store_costs_the_trial_nothing_but_the_newest_checkpoint(
    manager: RealManager, server: S3Server
) -> None:
    script = SAVES_SIX.replace("while step == 3", "while step == 3 and first == 1")
    experiment = manager.create(script, maxTrialNumber=1, **storage(server))

    def flip_a_bit() -> None:
        (trial,) = manager.trials(experiment)
        newest = list(manager.client.checkpoints(trial["id"]))[-1]["path"].removeprefix("s3://")
        content = server.system().cat_file(f"{newest}/weights")
        server.system().pipe_file(f"{newest}/weights", bytes([content[0] ^ 1]) + content[1:])

    pause_and_resume(manager, experiment, meanwhile=flip_a_bit)
    manager.until_status(experiment, "DONE")
    (trial,) = manager.trials(experiment)
    assert (trial["status"], trial["final_value"]) == ("SUCCEEDED", 3)
    assert [point["value"] for point in manager.client.trial_curve(trial["id"])] == [1, 2, 3, 4, 5, 6]
    jobs = manager.client.jobs(trial["id"])
    assert [job["end_reason"] for job in jobs] == ["PAUSED", "CHECKPOINT_DAMAGED", "EXITED_OK"]
    (notice,) = manager.client.experiment(experiment)["notices"]
    assert "weights is damaged: its content is not what was saved. It is not offered again" in notice


@pytest.mark.parametrize(
    ("user", "location", "problem"),
    [
        ({**OWNER, "AWS_SECRET_ACCESS_KEY": "wrong"}, "", r"cannot be used: .*signature"),
        (READER, "", r"cannot be used: Access Denied"),
        (OWNER, "nosuch://bucket/folder", r"cannot be used: ValueError: Protocol not known: nosuch"),
    ],
    ids=["wrong key", "no right to write", "unknown protocol"],
)
def test_a_storage_that_cannot_be_used_is_refused(
    manager: RealManager, server: S3Server, user: dict[str, str], location: str, problem: str
) -> None:
    with pytest.raises(
        BadInput, match=rf"checkpointStorage: .*{problem}.*; credentials are looked for in the variables"
    ):
        manager.create(SAVES_SIX, **storage(server, user, location))


def test_a_folder_that_cannot_be_written_is_refused(manager: RealManager, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"nothing can be stored in {tmp_path}/away: No such file or directory; create"):
        manager.create(SAVES_SIX, checkpointStorage=f"{tmp_path}/away")


def test_a_variable_that_was_not_handed_over_is_named(manager: RealManager, server: S3Server) -> None:
    asked = storage(server)
    del asked["secrets"]["checkpoint_storage.environment.AWS_SECRET_ACCESS_KEY"]
    with pytest.raises(BadInput, match="were not provided: AWS_SECRET_ACCESS_KEY of checkpointStorage"):
        manager.create(SAVES_SIX, **asked)


def test_no_trial_starts_whose_interpreter_cannot_reach_the_storage(
    manager: RealManager, server: S3Server, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = f"{tmp_path}/bare/bin/python"
    experiment = manager.create(SAVES_SIX, maxTrialNumber=1, **{**storage(server), "interpreter": python})
    expected = f"waiting: trials on node local cannot store checkpoints: {server.url}/{experiment} cannot be used: "
    expected += f"fsspec is not installed for {python}"
    manager.until(lambda: any(expected in trial["reason"] for trial in manager.trials(experiment)), expected)
    (trial,) = manager.trials(experiment)
    assert trial["status"] == "WAITING"
    assert not Path(trial["directory"], "jobs", "1", "stdout").exists()
    manager.client.stop_experiment(experiment)
    manager.until_status(experiment, "STOPPED")


GOES_ON_WITHOUT = """
import os, sys, tempfile, time
import proctor

proctor.get_next_parameter()
for step in range(1, 4):
    while step > 1 and not os.path.exists(f"{sys.argv[1]}/{step}"):
        time.sleep(0.02)
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/step", "w").close()
        proctor.report(step, checkpoint=folder, step=step)
proctor.report_final_result(1)
"""


@pytest.mark.thorough
def test_what_cannot_be_stored_while_the_server_is_away_is_said_and_the_trial_continues(
    manager: RealManager, server: S3Server, tmp_path: Path
) -> None:
    experiment = manager.create(
        GOES_ON_WITHOUT,
        tmp_path,
        maxTrialNumber=1,
        before="PROCTOR_REPORT_WAIT_SECONDS=0.1",
        keepCheckpoints=1,
        **storage(server),
    )

    await_reports(manager, experiment, 1)
    server.gate.close()
    (tmp_path / "2").touch()
    await_reports(manager, experiment, 2)
    server.gate.open()
    (tmp_path / "3").touch()
    manager.until_status(experiment, "DONE")
    (trial,) = manager.trials(experiment)
    assert [row["step"] for row in manager.client.checkpoints(trial["id"])] == [1, 3]
    said = Path(trial["directory"], "jobs", "1", "stderr").read_text()
    assert "a checkpoint could not be stored (s3://" in said

    server.gate.close()
    manager.client.stop_experiment(experiment)
    manager.until_status(experiment, "STOPPED")
    with pytest.raises(ManagerFault, match=r"cannot be deleted: .*--keep-checkpoints"):
        manager.client.delete_experiment(experiment)
    manager.client.delete_experiment(experiment, keep_checkpoints=True)
    server.gate.open()
    assert any(f"/{experiment}/" in path for path in server.system().find(BUCKET))
