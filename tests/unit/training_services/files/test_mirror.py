"""Collecting a node's files, with a hub that reads a folder of this machine."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.training_services.errors import CollectionFailed, ServiceUnavailable, TrainingServiceError
from proctor.training_services.files.collection import CollectionNote
from proctor.training_services.files.mirror import CollectedFiles, MirrorFolder
from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.protocol import FileFacts

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024


class FakeHub:
    """The files of one folder, as a keeper would tell of them. `failures` are raised by the reads of these paths,
    `breaks_after` so many reads the node goes away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads: list[tuple[str, int, int]] = []
        self.extra: list[FileFacts] = []
        self.failures: dict[str, Exception] = {}
        self.breaks_after: int | None = None

    async def list_files(self, node_id: str, folder: str, *, timeout_seconds: float) -> list[FileFacts]:
        if not self.folder.exists():
            raise FileNotFoundError(folder)
        return [*list_files(str(self.folder)), *self.extra]

    async def read_file(
        self, node_id: str, folder: str, path: str, offset: int, limit: int, *, timeout_seconds: float
    ) -> bytes:
        if self.breaks_after is not None and len(self.reads) >= self.breaks_after:
            raise ServiceUnavailable("the node went away")
        self.reads.append((path, offset, limit))
        if path in self.failures:
            raise self.failures[path]
        return read_file(str(self.folder), path, offset, limit)

    async def read_files(
        self, node_id: str, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float
    ) -> dict[str, bytes]:
        found = {}
        for path in paths:
            try:
                found[path] = await self.read_file(node_id, folder, path, 0, limit, timeout_seconds=timeout_seconds)
            except (FileNotFoundError, TrainingServiceError) as error:
                if isinstance(error, ServiceUnavailable):
                    raise
        return found


class Stage:
    """A folder on the node, its mirror here."""

    def __init__(self, directory: Path) -> None:
        self.there = directory / "there"
        self.here = directory / "here"
        self.there.mkdir()
        self.hub = FakeHub(self.there)
        self.files = self.fresh()

    def fresh(self) -> CollectedFiles:
        """The mirror as another manager would open it."""
        return CollectedFiles(self.hub, "gpu-1", folder="experiments/e1", local_folder=self.here)

    def write(self, path: str, data: bytes, *, modified: float = 1_700_000_000.25) -> None:
        file = self.there / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, (modified, modified))

    async def break_off(self, reads: int) -> None:
        """The node goes away in the middle of a collection, and comes back."""
        self.hub.breaks_after = reads
        with pytest.raises(ServiceUnavailable):
            await self.files.collect()
        self.hub.breaks_after = None
        self.hub.reads.clear()

    def contents(self) -> dict[str, bytes]:
        """All files that are here, parts included."""
        return {file.path: (self.here / file.path).read_bytes() for file in list_files(str(self.here))}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_a_folder_is_mirrored_with_its_modification_times(stage: Stage) -> None:
    stage.write("stdout", b"hello")
    stage.write("empty", b"")
    stage.write("output/checkpoints/3/weights", bytes(range(256)) * 8192)
    (stage.there / "link").symlink_to("stdout")
    collection = await stage.files.collect()
    assert (collection.files, collection.bytes, collection.left) == (3, 5 + 2 * MEBIBYTE, [])
    assert list_files(str(stage.here)) == list_files(str(stage.there))
    assert stage.contents()["output/checkpoints/3/weights"] == bytes(range(256)) * 8192


async def test_what_is_here_already_is_not_fetched_again_and_what_has_changed_is(stage: Stage) -> None:
    stage.write("same", b"1")
    stage.write("newer", b"1")
    stage.write("longer", b"1")
    await stage.files.collect(durable=True)
    stage.hub.reads.clear()
    assert (await stage.fresh().collect()).files == 0
    assert not stage.hub.reads
    stage.write("newer", b"2", modified=1_700_000_001.0)
    stage.write("longer", b"12")
    assert (await stage.fresh().collect(durable=True)).files == 2
    assert stage.contents() == {"same": b"1", "newer": b"2", "longer": b"12"}


async def test_files_over_the_limit_are_left_and_named(stage: Stage) -> None:
    stage.write("small", b"12345")
    stage.write("large", b"123456")
    collection = await stage.files.collect(largest=5)
    assert [(file.path, file.size) for file in collection.left] == [("large", 6)]
    assert set(stage.contents()) == {"small"}
    assert (await stage.files.collect()).left == []
    assert set(stage.contents()) == {"small", "large"}


async def test_checkpoints_that_are_half_saved_or_half_deleted_are_left_out(stage: Stage) -> None:
    stage.write("jobs/1/output/checkpoints/.unfinished-deleted-1/weights", b"1")
    stage.write("jobs/1/output/.unfinished", b"1")
    collection = await stage.files.collect()
    assert (collection.files, collection.left) == (1, [])
    assert set(stage.contents()) == {"jobs/1/output/.unfinished"}


async def test_a_folder_that_is_not_on_the_node_has_no_files(stage: Stage) -> None:
    stage.there.rmdir()
    collection = await stage.files.collect()
    assert (collection.files, collection.left) == (0, [])
    assert not stage.here.exists()


async def test_a_file_that_is_gone_meanwhile_is_skipped(stage: Stage) -> None:
    stage.hub.extra = [FileFacts("gone", 10, 1.0), FileFacts("gone/too", MEBIBYTE, 1.0)]
    stage.write("stays", b"1")
    collection = await stage.files.collect()
    assert (collection.files, collection.left) == (1, [])
    assert stage.contents() == {"stays": b"1"}


async def test_a_file_that_shrinks_while_it_is_read_is_fetched_again_the_next_time(stage: Stage) -> None:
    stage.write("log", b"y" * MEBIBYTE)
    real = stage.hub.list_files

    async def before(node_id: str, folder: str, *, timeout_seconds: float) -> list[FileFacts]:
        return [FileFacts("log", 3 * MEBIBYTE, 1_700_000_000.25)]

    stage.hub.list_files = before  # type: ignore[method-assign]
    await stage.files.collect()
    assert stage.contents() == {"log": b"y" * MEBIBYTE}
    stage.hub.list_files = real  # type: ignore[method-assign]
    stage.write("log", b"z" * MEBIBYTE)
    os.truncate(stage.there / "log", 10)
    await stage.fresh().collect()
    assert stage.contents() == {"log": b"z" * 10}


async def test_a_copy_that_was_cut_off_goes_on_where_it_was(stage: Stage) -> None:
    data = os.urandom(9 * MEBIBYTE)
    stage.write("model", data)
    await stage.break_off(3)
    done = (stage.here / "model.part").stat().st_size
    assert 0 < done < len(data)
    assert not (stage.here / "model").exists()
    collection = await stage.fresh().collect()
    assert (stage.hub.reads[0][1], collection.bytes) == (done, len(data) - done)
    assert stage.contents() == {"model": data}


async def test_a_copy_of_a_file_that_has_changed_since_starts_over(stage: Stage) -> None:
    stage.write("model", b"1" * 2 * MEBIBYTE)
    await stage.break_off(1)
    stage.write("model", b"2" * 2 * MEBIBYTE, modified=1_700_000_001.0)
    await stage.fresh().collect()
    assert stage.contents() == {"model": b"2" * 2 * MEBIBYTE}


async def test_a_small_file_is_not_mixed_with_an_old_part_of_it(stage: Stage) -> None:
    stage.write("a", b"new")
    stage.write("b", b"new")
    stage.here.mkdir()
    (stage.here / "a.part").write_bytes(b"n")
    os.utime(stage.here / "a.part", (1_700_000_000.25, 1_700_000_000.25))
    (stage.here / "b.part").write_bytes(b"older and longer")
    await stage.files.collect()
    assert stage.contents() == {"a": b"new", "b": b"new"}


async def test_files_are_copied_whatever_their_names(stage: Stage) -> None:
    names = ["n" * 255, "ü" * 127, "with\nnewline", "\udcff\udcfe", " "]
    contents = dict.fromkeys(names, b"1") | {"model": b"whole" * MEBIBYTE}
    contents |= {"model.part": b"half", "model.part.part": b"quarter"}  # no parts of another file
    for name, content in contents.items():
        stage.write(name, content)
    assert (await stage.files.collect()).left == []
    assert stage.contents() == contents


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "a/../../outside", "a//b", "", ".", "a/.", "nul\0"])
async def test_a_name_that_would_leave_the_folder_is_left_with_the_others_collected(stage: Stage, path: str) -> None:
    stage.write("good", b"1")
    stage.hub.extra = [FileFacts(path, 3, 1.0)]
    collection = await stage.files.collect(durable=True)
    assert [file.path for file in collection.left] == [path]
    assert stage.contents() == {"good": b"1"}
    assert {entry.name for entry in stage.here.parent.iterdir()} == {"here", "there"}


async def test_a_link_in_the_local_folder_is_not_followed(stage: Stage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    stage.here.mkdir()
    (stage.here / "output").symlink_to(outside)
    (stage.here / "stdout").symlink_to(outside / "victim")
    (stage.here / "stderr.part").symlink_to(outside / "victim")
    for path in ("output/model", "stdout", "stderr"):
        stage.write(path, b"new")
    collection = await stage.files.collect()
    assert [file.path for file in collection.left] == ["output/model"]
    assert [entry.name for entry in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "precious"
    assert (stage.here / "stdout").read_bytes() == (stage.here / "stderr").read_bytes() == b"new"


async def test_a_file_the_node_cannot_read_is_left_and_the_others_are_collected(stage: Stage) -> None:
    stage.write("bad", b"1" * MEBIBYTE)
    stage.write("good", b"2" * 2 * MEBIBYTE)
    stage.hub.failures["bad"] = TrainingServiceError("node gpu-1: bad: Input/output error")
    collection = await stage.files.collect()
    assert ([file.path for file in collection.left], collection.files) == (["bad"], 1)


async def test_a_file_whose_place_is_taken_by_a_folder_is_left_and_nothing_half_stays(stage: Stage) -> None:
    for name, size in (("small", 1), ("tiny", 1), ("large", 2 * MEBIBYTE)):
        stage.write(name, b"1" * size)
        (stage.here / name).mkdir(parents=True)
    collection = await stage.files.collect(durable=True)
    assert {file.path for file in collection.left} == {"small", "tiny", "large"}
    assert (collection.files, stage.contents()) == (0, {})


async def test_times_nobody_can_set_are_left(stage: Stage) -> None:
    stage.write("good", b"1")
    stage.hub.extra = [FileFacts("odd", 0, float("nan")), FileFacts("huge", 0, 1e300)]
    collection = await stage.files.collect()
    assert {file.path for file in collection.left} <= {"odd", "huge"}
    assert stage.contents()["good"] == b"1"


@pytest.mark.parametrize("size", [5, 3 * MEBIBYTE])
async def test_a_full_disk_is_a_clear_error_and_leaves_nothing_half(
    stage: Stage, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.write("a", b"1" * size)
    stage.write("b", b"1" * size)
    real, room = os.pwrite, size

    def nearly_full(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal room
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= len(data)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    with pytest.raises(CollectionFailed, match="No space left on device; free some space"):
        await stage.files.collect()
    assert stage.contents() == {"a": b"1" * size}
    monkeypatch.undo()
    assert (await stage.fresh().collect()).files == 1
    assert set(stage.contents()) == {"a", "b"}


async def test_many_small_files_come_in_few_questions(stage: Stage) -> None:
    questions = 0
    real = stage.hub.read_files

    async def counted(
        node_id: str, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float
    ) -> dict[str, bytes]:
        nonlocal questions
        questions += 1
        return await real(node_id, folder, paths, limit=limit, timeout_seconds=timeout_seconds)

    stage.hub.read_files = counted  # type: ignore[method-assign]
    for number in range(900):
        stage.write(f"{number}", b"x" * number)
    assert (await stage.files.collect()).files == 900
    assert questions == 2
    assert list_files(str(stage.here)) == list_files(str(stage.there))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 3000), max_size=8), cuts=st.lists(st.integers(0, 12), max_size=4))
async def test_whenever_it_is_cut_off_the_mirror_ends_up_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.files.mirror._FIRST_BYTES", 700)
    monkeypatch.setattr("proctor.training_services.files.mirror._SMALL_BYTES", 500)
    stage = Stage(tmp_path_factory.mktemp("mirror"))
    for number, size in enumerate(sizes):
        stage.write(f"{number % 3}/{number}", os.urandom(size))
    for cut in cuts:
        stage.hub.reads.clear()
        stage.hub.breaks_after = cut
        with suppress(ServiceUnavailable):
            await stage.fresh().collect()
    stage.hub.breaks_after = None
    await stage.fresh().collect()
    assert list_files(str(stage.here)) == list_files(str(stage.there))
    assert all((stage.there / path).read_bytes() == data for path, data in stage.contents().items())


def test_syncing_what_is_not_here_is_no_error(tmp_path: Path) -> None:
    mirror = MirrorFolder(tmp_path / "none")
    files = [FileFacts("a/b", 1, 1.0)]
    assert mirror.lacking(files) == files
    mirror.sync(files)


def test_a_note_says_which_files_of_a_job_are_here() -> None:
    note = CollectionNote(left=(("output/large", 10),), whole=("output/checkpoints/1",))
    here = {path: note.has(path) for path in ("output/large", "output/small", "output/checkpoints/1/model.pt")}
    assert here == {"output/large": False, "output/small": True, "output/checkpoints/1/model.pt": True}
    assert not CollectionNote().has("output/small")
