"""Which keeper of this machine may register with its manager."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor.sdk.files import open_locked
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.keeper import ensure_local_keeper
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.linux.identity import boot_id, start_time
from proctor.trial_keeper.settings import code_id

SECRET = "x" * 43


@pytest.fixture(scope="module")
def living_pid() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


@pytest.mark.parametrize(("code", "is_accepted"), [(code_id(), True), ("of another commit", False), (None, False)])
@pytest.mark.anyio
async def test_a_keeper_of_another_version_is_not_accepted_before_it_is_replaced(
    tmp_path: Path, living_pid: int, code: str | None, is_accepted: bool
) -> None:
    directory = tmp_path / "nodes" / "local"
    directory.mkdir(parents=True)
    facts = {"pid": living_pid, "start_time": start_time(living_pid), "boot_id": boot_id(), "version": "0.1.0"}
    (directory / "keeper.json").write_text(json.dumps(facts if code is None else {**facts, "code": code}))
    (directory / "secret").write_text(SECRET)
    lock = open_locked(directory / "keeper.lock")  # as it holds it
    assert lock is not None
    pool = NodePool()
    hub = KeeperHub(pool)
    ensure_local_keeper(tmp_path, hub, pool)
    assert hub.authenticate("local", SECRET) is is_accepted
    assert ("of another version (0.1.0) and is being replaced" in pool.node("local").reason) is not is_accepted
    hub.close()
    os.close(lock)
