"""The checkpoints of a real trial: which are kept and why, downloads, and what became of those that are deleted."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, verify_checkpoint
from proctor.sdk.client.errors import NotFound

pytestmark = pytest.mark.slow

REGISTERS_FOUR = """
import os, tempfile
import proctor

proctor.get_next_parameter()
for step, value in enumerate((0.9, 0.1, 0.2, 0.3), start=1):
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/state")
        with open(folder + "/weights", "wb") as file:
            file.write(bytes([step]) * 5_000_000)
        open(folder + "/state/" + "n" * 150, "w").close()
        proctor.report(value, checkpoint=folder, step=step)
proctor.report_final_result(1.0)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        yield made


@pytest.fixture(scope="module")
def trial(manager: RealManager) -> dict[str, Any]:
    """Its second checkpoint is deleted."""
    experiment = manager.create(REGISTERS_FOUR, objective={"direction": "maximize"}, maxTrialNumber=1)
    manager.until_status(experiment, "DONE")
    (found,) = manager.trials(experiment)
    folder = Path(found["directory"]) / "jobs" / "1" / "output" / "checkpoints"
    manager.until(lambda: not (folder / "2").exists() or None, "the second checkpoint to be deleted")
    return dict(found)


def test_the_list_says_what_is_kept_and_why(manager: RealManager, trial: dict[str, Any]) -> None:
    rows = list(manager.client.checkpoints(trial["id"]))
    assert [row["kept"] for row in rows] == [["BEST"], [], ["NEWEST"], ["NEWEST"]]
    assert [row["deleted_at"] is None for row in rows] == [True, False, True, True]
    assert [row["value"] for row in rows] == [0.9, 0.1, 0.2, 0.3]
    assert [row["size_bytes"] for row in rows] == [5_000_000] * 4
    lines = manager.command_line("trial", "checkpoints", trial["id"], "--all", "-o", "csv").splitlines()
    assert len(lines) == 5


def test_a_checkpoint_is_downloaded_whole(manager: RealManager, trial: dict[str, Any], tmp_path: Path) -> None:
    first, *_ = manager.client.checkpoints(trial["id"])
    manager.command_line("trial", "checkpoints", trial["id"], "--download", str(first["id"]), "-d", str(tmp_path / "m"))
    found = {path.relative_to(tmp_path / "m").as_posix() for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert found == {"weights", f"state/{'n' * 150}", MANIFEST_FILE}
    assert verify_checkpoint(str(tmp_path / "m"), first["manifest"]) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    with pytest.raises(FileExistsError, match="choose another folder"):
        manager.client.download_checkpoint(trial["id"], first["id"], tmp_path / "m")


def test_the_tar_has_one_folder_and_the_announced_size(manager: RealManager, trial: dict[str, Any]) -> None:
    *_, last = manager.client.checkpoints(trial["id"])
    path = f"/api/v1/trials/{trial['id']}/checkpoints/{last['id']}/tar"
    answer = httpx.get(manager.client.url + path, headers={"Authorization": f"Bearer {manager.client.token}"})
    assert answer.headers["content-type"] == "application/x-tar"
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert {name.split("/")[0] for name in archive.getnames()} == {f"{trial['id']}-checkpoint-{last['id']}"}


def test_a_deleted_checkpoint_is_not_found_with_the_reason(
    manager: RealManager, trial: dict[str, Any], tmp_path: Path
) -> None:
    deleted = list(manager.client.checkpoints(trial["id"]))[1]
    with pytest.raises(NotFound, match=r"was deleted at 20.* UTC, because keepCheckpoints or checkpointQuotaMb"):
        manager.client.download_checkpoint(trial["id"], deleted["id"], tmp_path / "m")
    with pytest.raises(NotFound, match="has no checkpoint 99"):
        manager.client.download_checkpoint(trial["id"], 99, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
