"""A real keeper lists, reads and removes files on its node for a manager."""

import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_node import Node, readable

import proctor
from proctor.sdk.checkpoints.saving import StoredCheckpoint, save_checkpoint
from proctor.trial_keeper.files.server import AT_ONCE
from proctor.trial_keeper.protocol import (
    COMMAND_TYPES,
    Cancel,
    EndReason,
    FetchArchive,
    ListFiles,
    ProbeStorage,
    ReadFile,
    ReadFiles,
    RemoveCheckpoint,
    RemoveFolder,
    VerifyCheckpoint,
)

pytestmark = pytest.mark.anyio

FOLDER = "experiments/e1/trials/0-T/jobs/1"
MEBIBYTE = 1024 * 1024


@pytest.fixture(autouse=True)
async def _own_files(node: Node) -> AsyncIterator[None]:
    """What a test puts into the keeper's directory goes with it."""
    yield
    for name in ("checkpoints", "code", "experiments", "source", "tools", "uploads"):
        shutil.rmtree(node.keeper_directory / name, ignore_errors=True)


def write(node: Node, path: str, data: bytes = b"x", *, folder: str = FOLDER) -> Path:
    """A file in a folder below the keeper's directory."""
    file = node.keeper_directory / folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


async def error_of(node: Node, order: Any) -> str:
    """What is wrong with an order, in the keeper's words; nothing where it was carried out."""
    answer, _ = await node.manager.ask(order)
    return answer.error


async def test_the_files_of_a_job_are_listed_and_read_where_they_lie(node: Node) -> None:
    launch = node.launch(
        "T.1",
        'echo hello; echo 123 > "$PROCTOR_OUTPUT_DIR/model"',
        directory=FOLDER,
        code_directory=".",
    )
    assert (await node.run(launch)).reason == EndReason.EXITED_OK
    answer, _ = await node.manager.ask(ListFiles("list", FOLDER))
    found = {file.path: file for file in answer.files}
    assert {"stdout", "stderr", "journal", "parameter.json", "exit.json", "output/model"} <= set(found)
    stdout = node.keeper_directory / FOLDER / "stdout"
    assert (found["stdout"].size, found["stdout"].modified) == (6, stdout.stat().st_mtime)
    for path, offset, limit, expected in [("stdout", 1, 3, b"ell"), ("output/model", -2, 9, b"3\n")]:
        answer, data = await node.manager.ask(ReadFile(f"read {path}", FOLDER, path, offset, limit))
        assert (answer.error, data) == ("", expected)


async def test_every_path_of_a_launch_may_be_relative_and_the_search_path_comes_first(node: Node) -> None:
    write(node, "greet", b"#!/bin/sh\necho greeted\n", folder="tools").chmod(0o755)
    write(node, "weights", b"learned", folder="checkpoints/3")
    write(node, "environment.json", b'{"environment": {"PATH": "/usr/bin:/bin", "FLAVOUR": "captured"}}', folder=".")
    (node.keeper_directory / "code" / "abc").mkdir(parents=True)
    launch = node.launch(
        "T.1",
        'greet; echo $FLAVOUR; pwd; cat "$PROCTOR_RESUME_CHECKPOINT/weights"; env | grep ^PATH=',
        directory=FOLDER,
        code_directory="code/abc",
        environment_file="environment.json",
        resume_checkpoint="checkpoints/3",
        search_path="tools",
    )
    end = await node.run(launch)
    lines = (node.keeper_directory / FOLDER / "stdout").read_text().splitlines()
    root = node.keeper_directory
    expected = ["greeted", "captured", f"{root}/code/abc", f"learnedPATH={root}/tools:/usr/bin:/bin"]
    assert (lines, end.detail) == (expected, "")


async def test_what_is_not_there_is_missing_and_not_an_error_of_the_keeper(node: Node) -> None:
    write(node, "stdout")
    for request in (
        ListFiles("a", "experiments/another"),
        ReadFile("b", FOLDER, "missing", 0, 10),
        ReadFile("c", "experiments/another", "stdout", 0, 10),
    ):
        answer, data = await node.manager.ask(request)
        assert (answer.missing, bool(answer.error), data) == (True, True, b"")


async def test_nothing_outside_is_listed_read_or_removed_by_a_link_neither(node: Node) -> None:
    outside = node.directory / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "secret").write_text("mine")
    write(node, "stdout")
    (node.keeper_directory / FOLDER / "link").symlink_to(outside)
    for number, folder in enumerate((str(outside), "../outside", ".", "", f"{FOLDER}/link/deep", "a\0b", "/")):
        for kind in (ListFiles, RemoveFolder):
            answer, _ = await node.manager.ask(kind(f"{kind.__name__} {number}", folder))
            assert (bool(answer.error), answer.missing) == (True, False), (kind, folder)
        answer, data = await node.manager.ask(ReadFile(f"read {number}", folder, "secret", 0, 10))
        assert (bool(answer.error), data) == (True, b"")
    answer, data = await node.manager.ask(ReadFile("read", FOLDER, "link/secret", 0, 10))
    assert (answer.missing, data) == (True, b"")
    assert (outside / "secret").read_text() == "mine"


async def test_the_directory_of_a_job_may_be_read_wherever_it_lies(node: Node) -> None:
    await node.begin("echo hello; sleep 600")
    answer, _ = await node.manager.ask(ListFiles("list", str(node.job_directory("T.1"))))
    assert "stdout" in {file.path for file in answer.files}
    assert "is not in the keeper's directory" in await error_of(
        node, RemoveFolder("remove", str(node.job_directory("T.1")))
    )


async def test_the_experiments_of_another_node_in_the_same_home_may_be_read_only(node: Node) -> None:
    neighbor = node.keeper_directory.parent / "neighbor"
    for folder in ("experiments/e1", "jobs"):
        (neighbor / folder).mkdir(parents=True)
        (neighbor / folder / "file").write_text("shared")
    answer, data = await node.manager.ask(ReadFile("read", str(neighbor / "experiments" / "e1"), "file", 0, 10))
    assert (answer.error, data) == ("", b"shared")
    for request in (ListFiles("list", str(neighbor / "jobs")), RemoveFolder("no", str(neighbor / "experiments/e1"))):
        assert await error_of(node, request)
    assert (neighbor / "experiments" / "e1" / "file").exists()


async def test_a_folder_is_removed_with_all_that_is_in_it_and_twice_is_once(node: Node) -> None:
    locked = write(node, "deep/file").parent
    locked.chmod(0o500)
    (node.keeper_directory / FOLDER / "link").symlink_to(node.directory)
    for request in ("first", "second"):
        answer, _ = await node.manager.ask(RemoveFolder(request, "experiments/e1"))
        assert (answer.error, answer.missing) == ("", False)
    assert not (node.keeper_directory / "experiments" / "e1").exists()
    assert node.directory.exists()


async def test_a_link_is_removed_and_not_what_it_leads_to(node: Node) -> None:
    write(node, "stdout")
    (node.keeper_directory / "experiments" / "link").symlink_to("e1")
    assert await error_of(node, RemoveFolder("link", "experiments/link")) == ""
    assert not (node.keeper_directory / "experiments" / "link").is_symlink()
    assert (node.keeper_directory / FOLDER / "stdout").exists()


async def test_a_folder_in_which_a_job_runs_and_the_keepers_own_are_left(node: Node) -> None:
    (node.keeper_directory / "code" / "abc").mkdir(parents=True)
    launch = node.launch("T.1", "sleep 600", directory=FOLDER, code_directory="code/abc")
    await node.begin(launch)
    for folder in ("experiments/e1", FOLDER, "code", "code/abc"):
        assert "T.1 is still running" in await error_of(node, RemoveFolder(f"running {folder}", folder))
    for folder in ("jobs", "sdk", "jobs/anything"):
        assert "belongs to the keeper" in await error_of(node, RemoveFolder(f"own {folder}", folder))
    await node.manager.command(Cancel("T.1", launch.token, 0.0))
    assert (await node.manager.end_of("T.1")).reason == EndReason.CANCELED
    assert await error_of(node, RemoveFolder("ended", "experiments/e1")) == ""


async def test_a_checkpoint_is_deleted_while_its_job_runs_and_twice_is_once(node: Node) -> None:
    job = node.job_directory("T.1")
    await node.begin("sleep 600")
    for number in ("1", "2"):
        (job / "output" / "checkpoints" / number).mkdir(parents=True)
        (job / "output" / "checkpoints" / number / "weights").touch()
    (job / "output" / "checkpoints" / "1").chmod(0o500)  # its files cannot be removed before that is changed
    for request in ("first", "second"):
        answer, _ = await node.manager.ask(RemoveCheckpoint(request, str(job / "output" / "checkpoints" / "1")))
        assert (answer.error, answer.missing) == ("", False)
    assert os.listdir(job / "output" / "checkpoints") == ["2"]
    assert node.manager.registrations[-1].commands == sorted(COMMAND_TYPES)


async def test_what_a_killed_keeper_has_left_of_a_checkpoint_goes_with_the_repeated_request(node: Node) -> None:
    write(node, "parameter.json")
    left = write(node, "output/checkpoints/.unfinished-deleted-7/weights").parent
    write(node, "output/checkpoints/8/weights")
    answer, _ = await node.manager.ask(RemoveCheckpoint("again", f"{FOLDER}/output/checkpoints/7"))
    assert (answer.error, left.exists()) == ("", False)
    assert os.listdir(left.parent) == ["8"]


async def test_no_checkpoint_is_deleted_that_a_running_job_continues_from(node: Node) -> None:
    write(node, "parameter.json")
    weights = write(node, "output/checkpoints/3/weights")
    saved = f"{FOLDER}/output/checkpoints/3"
    launch = node.launch("T.2", "sleep 600", resume_checkpoint=saved)
    await node.manager.command(launch)
    await node.manager.start_of("T.2")
    assert f"job T.2 is running and continues from {saved}" in await error_of(node, RemoveCheckpoint("busy", saved))
    assert weights.exists()
    await node.manager.command(Cancel("T.2", launch.token, 0.0))
    await node.manager.end_of("T.2")
    answer, _ = await node.manager.ask(RemoveCheckpoint("free", saved))
    assert (answer.error, weights.parent.exists()) == ("", False)


async def test_only_checkpoints_of_jobs_are_deleted_as_checkpoints(node: Node) -> None:
    outside = node.directory / "mine"
    (outside / "output" / "checkpoints" / "1").mkdir(parents=True)
    (outside / "1").mkdir()
    write(node, "parameter.json")
    write(node, "output/model")
    (node.keeper_directory / FOLDER / "output" / "checkpoints").symlink_to(outside)
    refused = {
        f"{FOLDER}/output": "is no checkpoint",
        f"{FOLDER}/output/checkpoints": "is no checkpoint",
        f"{FOLDER}/output/checkpoints/1/../../..": "is no checkpoint",
        f"{FOLDER}/output/checkpoints/1": "is reached by a link",
        str(outside / "output" / "checkpoints" / "1"): "is not the directory of a job",
        "a\0b": "not the name of a folder",
    }
    for number, (folder, why) in enumerate(refused.items()):
        assert why in await error_of(node, RemoveCheckpoint(f"no {number}", folder)), folder
    assert (outside / "output" / "checkpoints" / "1").exists()
    assert (outside / "1").exists()


async def test_a_checkpoint_of_a_shared_folder_is_deleted_by_its_manifest(node: Node) -> None:
    write(node, "weights", b"learned", folder="source")
    shared = node.directory / "shared" / "e1" / "t1" / "1"
    (shared / "7").mkdir(parents=True)
    (shared / "7" / "mine").touch()
    stored = save_checkpoint(str(node.keeper_directory / "source"), str(node.directory / "job"))
    assert isinstance(stored, StoredCheckpoint)
    (node.directory / "job" / stored.path).rename(shared / "1")
    assert "is no checkpoint, it has no .proctor-manifest.json" in await error_of(
        node, RemoveCheckpoint("no manifest", str(shared / "7"))
    )
    for number in range(2):
        answer, _ = await node.manager.ask(RemoveCheckpoint(f"time {number}", str(shared / "1")))
        assert (answer.error, [path.name for path in shared.iterdir()]) == ("", ["7"])
    assert f"{shared}/nothing is not there, perhaps not mounted on this node" in await error_of(
        node, RemoveCheckpoint("away", str(shared / "nothing" / "1"))
    )


async def test_a_folder_for_checkpoints_is_tried(node: Node) -> None:
    launch = node.launch("T.1", "exit 0", code_directory=".")
    shared = node.directory / "mounted" / "e1"
    answer, _ = await node.manager.ask(ProbeStorage("away", str(shared), launch))
    assert answer.damage == f"there is no folder {shared.parent}; mount what the nodes share, or create it"
    assert not shared.parent.exists()
    shared.parent.mkdir()
    answer, _ = await node.manager.ask(ProbeStorage("good", str(shared), launch))
    assert (answer.error, answer.damage, answer.has_mark, list(shared.iterdir())) == ("", "", None, [])
    for makes_mark, has_mark in ((False, False), (True, True), (False, True)):
        asked = ProbeStorage(f"{makes_mark}, {has_mark}", str(shared), launch, mark="mark", makes_mark=makes_mark)
        answer, _ = await node.manager.ask(asked)
        assert (answer.error, answer.damage, answer.has_mark) == ("", "", has_mark)
    place = f"{node.directory}/mounted/e1/file"
    Path(place).touch()
    answer, _ = await node.manager.ask(ProbeStorage("bad", place, launch))
    assert answer.damage == f"{place} cannot be used: [Errno 17] File exists: '{place}'"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{sys.executable} train.py", "nosuch://b/c cannot be used: ValueError: Protocol not known: nosuch"),
        ("./train.sh", ""),
        ("python-that-is-not-there train.py", ""),
    ],
    ids=["a Python", "a script", "nothing"],
)
async def test_a_url_for_checkpoints_is_tried_by_the_interpreter_of_the_command(
    node: Node, command: str, expected: str
) -> None:
    answer, _ = await node.manager.ask(
        ProbeStorage("url", "nosuch://b/c", node.launch("T.1", command, code_directory="."))
    )
    assert (answer.error, answer.damage, answer.has_mark) == ("", expected, None)


async def test_a_mark_under_a_url_is_looked_for_by_the_interpreter_of_the_command(node: Node) -> None:
    url = f"file://{node.directory}/stored"
    launch = node.launch("T.1", f"{sys.executable} train.py", code_directory=".")
    for has_mark in (False, True):
        answer, _ = await node.manager.ask(ProbeStorage(f"{has_mark}", url, launch, mark="mark"))
        assert (answer.error, answer.damage, answer.has_mark) == ("", "", has_mark)
        (node.directory / "stored" / "mark").touch()


async def test_a_checkpoint_is_verified_wherever_it_lies(node: Node) -> None:
    write(node, "weights", b"learned", folder="source")
    elsewhere, ours = node.directory / "elsewhere", node.keeper_directory / FOLDER
    for number, job in enumerate((elsewhere, ours)):
        stored = save_checkpoint(str(node.keeper_directory / "source"), str(job))
        assert stored is not None
        folder = f"{job}/{stored.path}" if job is elsewhere else f"{FOLDER}/{stored.path}"
        request = VerifyCheckpoint(f"whole {number}", folder, stored.manifest)
        answer, _ = await node.manager.ask(request)
        assert (answer.error, answer.damage) == ("", "")
        (job / stored.path / "weights").write_bytes(b"lost")
        answer, _ = await node.manager.ask(VerifyCheckpoint(f"torn {number}", folder, stored.manifest))
        assert (answer.error, answer.damage) == ("", "weights has 4 bytes, 7 expected")
    answer, _ = await node.manager.ask(VerifyCheckpoint("gone", "nowhere", None))
    assert (answer.error, answer.missing, answer.damage) == ("", False, "its folder is gone")


async def test_long_lists_come_in_pages_that_follow_one_another(node: Node) -> None:
    names = sorted(f"{number:05}/é\udcff" for number in range(4500))
    for name in names:
        os.makedirs(node.keeper_directory / FOLDER / os.path.dirname(name), exist_ok=True)
        os.mknod(node.keeper_directory / FOLDER / name)
    found: list[str] = []
    pages = 0
    while True:
        answer, _ = await node.manager.ask(ListFiles(f"page {pages}", FOLDER, found[-1] if found else ""))
        assert not answer.error
        found += [file.path for file in answer.files]
        pages += 1
        if not answer.more:
            break
    assert found == names
    assert pages == 3


async def test_small_files_come_together_as_many_as_fit(node: Node) -> None:
    paths = [f"{number}" for number in range(9)]
    for path in paths:
        write(node, path, path.encode() * (MEBIBYTE // 2 + 1))
    answer, data = await node.manager.ask(ReadFiles("all", FOLDER, ["missing", *paths], MEBIBYTE))
    assert [file.path for file in answer.files] == paths[:7]
    assert data == b"".join(path.encode() * (MEBIBYTE // 2 + 1) for path in paths[:7])
    answer, data = await node.manager.ask(ReadFiles("beginnings", FOLDER, paths, 2))
    assert data == b"".join(path.encode() * 2 for path in paths)


async def test_an_answer_holds_no_more_than_four_mebibytes(node: Node) -> None:
    write(node, "model", bytes(5 * MEBIBYTE))
    answer, data = await node.manager.ask(ReadFile("read", FOLDER, "model", 0, 64 * MEBIBYTE))
    assert (answer.error, len(data)) == ("", 4 * MEBIBYTE)


@dataclass(frozen=True)
class OfANewerManager:
    """A request that no keeper of this version knows."""

    request: str


async def test_an_order_nobody_can_read_is_answered_and_the_keeper_goes_on(node: Node) -> None:
    write(node, "stdout")
    for number, (offset, limit, problem) in enumerate(
        [(1 << 70, 10, "offset: expected a number that can be stored"), (0, "many", "limit: expected int, found str")]
    ):
        answer, _ = await node.manager.ask(ReadFile(f"odd {number}", FOLDER, "stdout", offset, limit))  # type: ignore[arg-type]
        assert answer.error.startswith(f"its keeper cannot read the command ReadFile: {problem}")
    answer, _ = await node.manager.ask(OfANewerManager("unknown"))
    assert answer.error == (
        f"its keeper cannot read the command OfANewerManager: a keeper of version {proctor.__version__} has no such "
        "command"
    )
    answer, data = await node.manager.ask(ReadFile("good", FOLDER, "stdout", 0, 10))
    assert (answer.error, data) == ("", b"x")


async def test_launches_and_reports_go_on_beside_many_requests(node: Node) -> None:
    write(node, "model", bytes(4 * MEBIBYTE))
    requests = [ReadFile(f"read {number}", FOLDER, "model", 0, 4 * MEBIBYTE) for number in range(30)]
    await node.manager.command(*requests, node.launch("T.1", "echo '{}' >> $PROCTOR_JOB_DIR/journal"))
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK
    assert node.manager.journals["T.1", "0"] == b"{}\n"
    await node.manager.until(lambda: len(node.manager.answers) == len(requests), seconds=60)
    assert all(len(data) == 4 * MEBIBYTE for _, data in node.manager.answers.values())
    assert len(node.manager.registrations) == 1


async def test_a_new_session_is_answered_after_requests_of_the_one_before_were_left(node: Node) -> None:
    write(node, "model", bytes(4 * MEBIBYTE))
    requests = [ReadFile(f"read {number}", FOLDER, "model", 0, 4 * MEBIBYTE) for number in range(20)]
    await node.manager.command(*requests)
    await node.manager.restart()
    answer, _ = await node.manager.ask(ListFiles("after", FOLDER))
    assert [file.path for file in answer.files] == ["model"]


async def test_a_manager_that_closes_idle_connections_is_answered_on_new_ones(node: Node) -> None:
    write(node, "stdout")
    node.manager.hangs_up_after.add("answer")
    for number in range(3 * AT_ONCE):
        answer, data = await node.manager.ask(ReadFile(f"{number}", FOLDER, "stdout", 0, 10))
        assert (answer.error, data) == ("", b"x")
    assert len(node.manager.registrations) == 1


def offer(node: Node, request: str, folder: str, *, content: bytes = b"x" * 300_000) -> FetchArchive:
    """An archive with one file, which the manager offers."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=0) as tar:
        member = tarfile.TarInfo("train.py")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    data = packed.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    node.manager.archives[sha256] = data
    return FetchArchive(request, folder, sha256, len(data))


async def test_an_archive_is_fetched_piece_by_piece_and_becomes_a_folder_once(node: Node) -> None:
    order = offer(node, "first", "code/abc")
    assert await error_of(node, order) == ""
    assert (node.keeper_directory / "code/abc/train.py").read_bytes() == b"x" * 300_000
    pieces = list(node.manager.pieces)
    assert pieces == list(range(0, order.size, node.manager.piece_bytes))
    again, _ = await node.manager.ask(FetchArchive("again", order.folder, order.sha256, order.size))
    assert (again.error, node.manager.pieces) == ("", pieces)
    assert list((node.keeper_directory / "uploads").iterdir()) == []


async def test_what_has_arrived_of_an_archive_is_not_asked_for_again_by_the_next_session(node: Node) -> None:
    order = offer(node, "first", "code/abc")
    data = node.manager.archives[order.sha256]
    node.manager.archives[order.sha256] = data[: 2 * node.manager.piece_bytes]
    assert (
        await error_of(node, order)
        == f"the archive for code/abc ends after {2 * node.manager.piece_bytes} of {order.size} bytes"
    )
    await node.manager.restart()
    node.manager.archives[order.sha256] = data
    node.manager.pieces.clear()
    answer, _ = await node.manager.ask(FetchArchive("second", order.folder, order.sha256, order.size))
    assert (answer.error, node.manager.pieces[0]) == ("", 2 * node.manager.piece_bytes)
    assert (node.keeper_directory / "code/abc/train.py").stat().st_size == 300_000


async def test_a_damaged_archive_is_no_folder_and_is_fetched_again_when_asked(node: Node) -> None:
    order = offer(node, "first", "code/abc")
    data = node.manager.archives[order.sha256]
    node.manager.archives[order.sha256] = data[:-1] + bytes([data[-1] ^ 1])
    assert "damaged in transit" in await error_of(node, order)
    assert not (node.keeper_directory / "code/abc").exists()
    node.manager.archives[order.sha256] = data
    assert await error_of(node, FetchArchive("second", order.folder, order.sha256, order.size)) == ""


@pytest.mark.parametrize("place", ["keeper.archive.before", "keeper.archive.after"])
async def test_a_keeper_that_is_killed_while_it_unpacks_has_the_folder_whole_when_it_is_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    await node.stop()
    monkeypatch.setenv("PROCTOR_FAILPOINT", place)
    pid = await node.start()
    order = offer(node, "first", "code/abc")
    await node.manager.command(order)
    descriptor = os.pidfd_open(pid)
    await readable(descriptor)
    os.close(descriptor)
    monkeypatch.delenv("PROCTOR_FAILPOINT")
    node.manager.pieces.clear()
    await node.manager.forget_session()  # it is the dead keeper's
    await node.start()
    answer, _ = await node.manager.ask(FetchArchive("second", order.folder, order.sha256, order.size))
    assert (answer.error, node.manager.pieces) == ("", [])
    assert (node.keeper_directory / "code/abc/train.py").read_bytes() == b"x" * 300_000


@pytest.mark.parametrize("folder", ["../elsewhere", "jobs/x", "/etc/proctor", "."])
async def test_no_archive_is_unpacked_outside_of_the_folders_for_it(node: Node, folder: str) -> None:
    assert "nothing is unpacked there" in await error_of(node, offer(node, "first", folder))
    assert node.manager.pieces == []


async def test_an_archive_that_is_no_longer_offered_does_not_end_the_session(node: Node) -> None:
    order = offer(node, "first", "code/abc")
    del node.manager.archives[order.sha256]
    assert await error_of(node, order) == "the manager no longer offers this archive"
    assert len(node.manager.registrations) == 1
