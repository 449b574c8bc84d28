"""Whose a place in a checkpointStorage is: claimed once, deleted by its owner alone. A folder, and a URL."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.checkpoints.ownership import (
    OWNER_FILE,
    SHARED_PREFIX,
    CheckpointPlace,
    FolderPlace,
    Owner,
    StoredProof,
    UrlPlace,
    claim,
    delete,
    release,
)
from proctor.sdk.checkpoints.storage import MARK_CONTENT

OWNER = Owner("home-1", "e1", 1764000000.125)
ANOTHER_MANAGER = OWNER._replace(home="home-2")
EARLIER = OWNER._replace(created_at=1763000000.0)


@pytest.fixture(params=["folder", "URL"])
def place(request: pytest.FixtureRequest, folder: Path) -> CheckpointPlace:
    return FolderPlace(str(folder)) if request.param == "folder" else UrlPlace(f"file://{folder}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "e1"


def fill(folder: Path, files: tuple[str, ...] = ("t1/1/1/model.pt", "notes")) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_place_is_claimed_filled_and_deleted(place: CheckpointPlace, folder: Path) -> None:
    assert [claim(place, OWNER), claim(place, OWNER)] == ["", ""]
    fill(folder)
    assert claim(place, OWNER) == ""
    assert [delete(place, OWNER), delete(place, OWNER)] == ["", ""]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (None, "it holds something that this experiment has not stored there"),
        (ANOTHER_MANAGER, "it belongs to experiment e1 of another manager"),
        (EARLIER, "it belongs to another experiment of the id e1"),
    ],
    ids=["no one", "another manager", "an earlier experiment"],
)
def test_what_is_anothers_is_neither_claimed_nor_deleted(
    place: CheckpointPlace, folder: Path, owner: Owner | None, reason: str
) -> None:
    fill(folder)
    if owner is not None:
        (folder / OWNER_FILE).write_bytes(owner.encode())
    before = files(folder)
    assert claim(place, OWNER) == reason
    left = delete(place, OWNER)
    assert left == (reason if owner else "nothing shows that this experiment has stored what is there")
    release(place, OWNER)
    assert files(folder) == before


def test_a_mark_that_cannot_be_read_is_no_ones(place: CheckpointPlace, folder: Path) -> None:
    fill(folder, (OWNER_FILE,))
    assert claim(place, OWNER) == delete(place, OWNER) == f"its {OWNER_FILE} cannot be read"


def test_a_creation_that_was_cut_off_leaves_its_place_to_the_next_one(place: CheckpointPlace, folder: Path) -> None:
    assert claim(place, EARLIER) == ""
    fill(folder, (".proctor-probe-1234-abcd",))
    assert claim(place, OWNER) == ""
    assert delete(place, EARLIER) == "it belongs to another experiment of the id e1"
    assert claim(place, ANOTHER_MANAGER) == "it belongs to experiment e1 of another manager"


def test_what_was_released_stays_and_can_be_adopted(place: CheckpointPlace, folder: Path) -> None:
    claim(place, EARLIER)
    fill(folder)
    (folder / f"{SHARED_PREFIX}1234").touch()
    release(place, EARLIER)
    assert files(folder) == {"t1/1/1/model.pt", "notes"}
    assert claim(place, OWNER) != ""
    assert claim(place, OWNER, adopts=True) == ""
    assert delete(place, OWNER) == ""


def test_a_mark_is_made_with_the_claim_and_says_what_it_is(place: CheckpointPlace, folder: Path) -> None:
    assert claim(place, OWNER, mark=f"{SHARED_PREFIX}1234") == ""
    assert (folder / f"{SHARED_PREFIX}1234").read_bytes() == MARK_CONTENT
    assert claim(place, ANOTHER_MANAGER, mark=f"{SHARED_PREFIX}5678") != ""
    assert files(folder) == {OWNER_FILE, f"{SHARED_PREFIX}1234"}


def test_a_place_of_marks_alone_is_deleted(place: CheckpointPlace, folder: Path) -> None:
    """A node has made the mark, when the manager's machine did not have the location."""
    fill(folder, (f"{SHARED_PREFIX}1234", ".proctor-probe-1234-abcd"))
    assert delete(place, OWNER) == ""
    assert not folder.exists()


def test_an_empty_place_goes_when_it_is_released(place: CheckpointPlace, folder: Path) -> None:
    claim(place, OWNER)
    release(place, OWNER)
    assert not folder.exists()


def test_a_registered_checkpoint_proves_whose_an_unmarked_place_is(place: CheckpointPlace, folder: Path) -> None:
    fill(folder, (f"t1/1/1/{MANIFEST_FILE}", "t1/1/1/model.pt"))
    manifest = sha256((folder / f"t1/1/1/{MANIFEST_FILE}").read_bytes()).hexdigest()
    wrong = [StoredProof("t1/1/1", "0" * 64), StoredProof("t1/1/2", manifest)]
    assert claim(place, OWNER, proofs=wrong) != ""
    assert claim(place, OWNER, proofs=[*wrong, StoredProof("t1/1/1", manifest)]) == ""
    assert delete(place, OWNER) == ""


def test_a_deletion_that_was_cut_off_is_continued(
    place: CheckpointPlace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(place, OWNER)
    fill(folder)

    def fail(name: str) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(place, "remove", fail)
        with pytest.raises(PermissionError):
            delete(place, OWNER)
    assert delete(place, OWNER) == ""
    assert not folder.exists()


@pytest.mark.parametrize("act", [delete, release])
def test_a_place_that_was_moved_to_another_disk_goes_with_the_link_to_it(
    tmp_path: Path, folder: Path, act: Callable[[CheckpointPlace, Owner], object]
) -> None:
    claim(FolderPlace(str(folder)), OWNER)
    target = folder.rename(tmp_path / "disk")
    folder.symlink_to(target)
    act(FolderPlace(str(folder)), OWNER)
    assert (target.exists(), folder.is_symlink()) == (False, False)


def test_whoever_may_write_beside_a_place_may_write_in_it(tmp_path: Path, folder: Path) -> None:
    tmp_path.chmod(0o2775)
    claim(FolderPlace(str(folder)), OWNER)
    assert folder.stat().st_mode & 0o7777 == 0o2775
    assert (folder / OWNER_FILE).stat().st_mode & 0o777 == 0o644
