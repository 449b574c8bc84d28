"""The manager asks about checkpoints under a URL by a process that has the experiment's variables, and no others do."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.checkpoints.ownership import Owner, StoredProof
from proctor.sdk.checkpoints.saving import StoredCheckpoint, save_checkpoint
from proctor.sdk.checkpoints.storage import upload
from proctor.training_services import stored_checkpoints
from proctor.training_services.base import CheckpointOffer
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.stored_checkpoints import (
    await_verified,
    claim_place,
    delete_place,
    delete_stored,
    download_stored,
    probe_storage,
    release_place,
    verify_stored,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def offer(tmp_path: Path) -> CheckpointOffer:
    """A checkpoint that is stored."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(b"learned")
    stored = save_checkpoint(str(tmp_path / "source"), str(tmp_path / "job"))
    assert isinstance(stored, StoredCheckpoint)
    upload(f"{tmp_path}/job/{stored.path}", f"file://{tmp_path}/stored/1")
    return CheckpointOffer("t.1", f"file://{tmp_path}/stored/1", 3, manifest=stored.manifest)


def broken(folder: Path, source: str) -> dict[str, str]:
    """The variables of a process whose library for storages does this."""
    (folder / "broken").mkdir()
    (folder / "broken" / "fsspec.py").write_text(source)
    return {"PYTHONPATH": f"{folder}/broken"}


@pytest.mark.slow
async def test_a_checkpoint_is_verified_downloaded_and_deleted(tmp_path: Path, offer: CheckpointOffer) -> None:
    assert await verify_stored(offer, {}) == ""
    await download_stored(offer.path, f"{tmp_path}/copy", {})
    assert verify_checkpoint(f"{tmp_path}/copy", offer.manifest) == ""
    assert await probe_storage(f"file://{tmp_path}/stored", {}) == ""
    await delete_stored(offer.path, {})
    assert "it has no manifest" in await verify_stored(offer, {})
    assert [path.name for path in (tmp_path / "stored").iterdir()] == []


@pytest.mark.slow
async def test_a_place_is_claimed_with_proofs_adopted_released_and_deleted(
    tmp_path: Path, offer: CheckpointOffer
) -> None:
    place, owner = f"file://{tmp_path}/stored", Owner("home-1", "e1", 1.5)
    assert offer.manifest is not None
    assert "it holds something" in await claim_place(place, owner, {})
    assert await claim_place(place, owner, {}, proofs=[StoredProof("1", offer.manifest)]) == ""
    await release_place(place, owner, {})
    assert "nothing shows" in await delete_place(place, owner, {})
    assert await claim_place(place, owner, {}, adopts=True) == ""
    assert await delete_place(place, owner, {}) == ""
    assert not (tmp_path / "stored").exists()
    with pytest.raises(ServiceUnavailable, match=r"^nosuch://b/c cannot be deleted: "):
        await delete_place("nosuch://b/c", owner, {})


async def test_the_variables_are_those_of_the_process_alone(tmp_path: Path, offer: CheckpointOffer) -> None:
    variables = broken(tmp_path, "import os; raise RuntimeError(os.environ['SECRET'])") | {"SECRET": "sesame"}
    assert await probe_storage("file:///anywhere", variables) == "file:///anywhere cannot be used: RuntimeError: sesame"
    assert "SECRET" not in os.environ
    assert await probe_storage(f"file://{tmp_path}/stored", {}) == ""


async def test_a_storage_that_cannot_be_read_is_asked_again(
    offer: CheckpointOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_checkpoints, "growing_pause", lambda failures: 0.0)
    real, said, answers = stored_checkpoints.verify_stored, list[str](), iter([ServiceUnavailable("it is away")])

    async def verify(offer: CheckpointOffer, environment: dict[str, str]) -> str:
        for error in answers:
            raise error
        return await real(offer, environment)

    monkeypatch.setattr(stored_checkpoints, "verify_stored", verify)
    assert await await_verified(offer, {}, said.append) == ""
    assert said == ["it is away; tried again in 0 s"]


async def test_a_storage_that_does_not_answer_is_not_waited_for(tmp_path: Path, offer: CheckpointOffer) -> None:
    with pytest.raises(ServiceUnavailable, match=f"{offer.path} has not answered for 0 s"):
        await verify_stored(offer, broken(tmp_path, "import time; time.sleep(600)"), time_limit=0.1)


async def test_a_process_that_dies_is_reported_with_what_it_said(tmp_path: Path, offer: CheckpointOffer) -> None:
    variables = broken(tmp_path, "import os, sys; print('no memory', file=sys.stderr); os._exit(9)")
    with pytest.raises(ServiceUnavailable, match=f"{offer.path} cannot be reached: no memory"):
        await verify_stored(offer, variables)


async def test_a_canceled_question_leaves_no_process(tmp_path: Path, offer: CheckpointOffer) -> None:
    begun = tmp_path / "begun"
    variables = broken(tmp_path, f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(verify_stored(offer, variables))
        pid = await asyncio.to_thread(await_text, begun)
        asking.cancel()
    assert not os.path.exists(f"/proc/{pid}")


def await_text(path: Path) -> str:
    while not (path.exists() and path.read_text()):
        time.sleep(0.02)
    return path.read_text()
