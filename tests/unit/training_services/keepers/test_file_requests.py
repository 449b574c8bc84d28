"""Questions about files through the hub, answered by a keeper that is played by calling the hub's methods."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.training_services.errors import (
    KeeperOutdated,
    ServiceUnavailable,
    TrainingServiceError,
    UnknownContent,
    UnknownSession,
)
from proctor.training_services.keepers.file_requests import MOST_BYTES
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import CommandPoll, ContentRequest, FileAnswer, FileFacts, Registration

pytestmark = pytest.mark.anyio

NODE = "gpu-1"

Reply = Callable[[str, dict[str, Any]], tuple[dict[str, Any], bytes]]


class Stage:
    """A hub with one node whose keeper answers as `reply` says; None: it takes the questions and is silent."""

    def __init__(self) -> None:
        self.pool = NodePool()
        self.pool.add(NODE, "remote")
        self.hub = KeeperHub(self.pool, heartbeat_seconds=60.0)
        self.hub.add_node(NODE, "secret")
        self.session = ""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.reply: Reply | None = None

    async def register(self, *commands: str) -> None:
        await self.hub.mark_reattached()
        registration = Registration("k", 1, "boot", "host", "0", "3.11", [], [], commands=list(commands))
        self.session = (await self.hub.register(NODE, registration)).session

    async def serve(self) -> None:
        """Take questions and answer them until the session is over."""
        cursor = 0
        while True:
            try:
                batch = await self.hub.poll(NODE, CommandPoll(self.session, cursor, 60.0))
            except UnknownSession:
                return
            for command in batch.commands:
                cursor = command.number
                self.asked.append((command.type, command.order))
                if self.reply is not None:
                    facts, data = self.reply(command.type, command.order)
                    answer = FileAnswer(**{"session": self.session, "request": command.order["request"], **facts})
                    self.hub.answer(NODE, answer, data)

    async def during(self, work: Awaitable[Any]) -> Any:
        """What `work` returns, or raises, while the keeper serves."""
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            serving = group.create_task(self.serve(), name="keeper")
            (outcome,) = await asyncio.gather(work, return_exceptions=True)
            serving.cancel()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def until_asked(self, number: int) -> None:
        async with asyncio.timeout(60):
            while len(self.asked) < number:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def stage(anyio_backend: str) -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.register()
    yield stage
    stage.hub.close()


async def test_a_list_of_several_pages_is_one_list(stage: Stage) -> None:
    files = [FileFacts(f"{number:02}", number, 1.5) for number in range(25)]

    def reply(kind: str, order: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        later = [file for file in files if file.path > order["after"]]
        return {"files": later[:10], "more": len(later) > 10}, b""

    stage.reply = reply
    assert await stage.during(stage.hub.list_files(NODE, "experiments/e1")) == files
    assert [(kind, order["folder"], order["after"]) for kind, order in stage.asked] == [
        ("ListFiles", "experiments/e1", ""),
        ("ListFiles", "experiments/e1", "09"),
        ("ListFiles", "experiments/e1", "19"),
    ]


@pytest.mark.parametrize(("offset", "limit"), [(0, 10), (3, MOST_BYTES), (5, 3 * MOST_BYTES), (0, 0), (0, 1 << 40)])
async def test_a_file_is_read_in_as_many_pieces_as_it_takes(stage: Stage, offset: int, limit: int) -> None:
    content = bytes(range(251)) * 40_000  # 2.4 answers

    def reply(kind: str, order: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        assert order["limit"] <= MOST_BYTES
        return {}, content[order["offset"] : order["offset"] + order["limit"]]

    stage.reply = reply
    read = await stage.during(stage.hub.read_file(NODE, "folder", "model", offset, limit))
    assert read == content[offset : offset + limit]


async def test_the_end_of_a_file_is_one_question(stage: Stage) -> None:
    stage.reply = lambda kind, order: ({}, b"x" * order["limit"])
    read = await stage.during(stage.hub.read_file(NODE, "folder", "log", -100, 2 * MOST_BYTES))
    assert (len(read), len(stage.asked)) == (MOST_BYTES, 1)


async def test_small_files_are_cut_out_of_one_answer(stage: Stage) -> None:
    stage.reply = lambda kind, order: ({"files": [FileFacts("a", 2), FileFacts("b", 0), FileFacts("c", 1)]}, b"aac")
    read = stage.hub.read_files(NODE, "folder", ["a", "b", "c", "d"], limit=10)
    assert await stage.during(read) == {"a": b"aa", "b": b"", "c": b"c"}


@pytest.mark.parametrize(
    "files",
    [
        [FileFacts("a", 4)],
        [FileFacts("a", -1)],
        [FileFacts("a", "3")],  # type: ignore[arg-type]
        [FileFacts(7, 3)],  # type: ignore[arg-type]
        [FileFacts("a", 3, "now")],  # type: ignore[arg-type]
    ],
)
async def test_an_answer_that_contradicts_itself_is_an_error(stage: Stage, files: list[FileFacts]) -> None:
    stage.reply = lambda kind, order: ({"files": files}, b"aaa")
    with pytest.raises(TrainingServiceError, match=NODE):
        await stage.during(stage.hub.read_files(NODE, "folder", ["a"], limit=10))


@pytest.mark.parametrize("path", ["../jobs/x", "/etc/passwd", "a/../../b", "a//b", "", "."])
async def test_a_keeper_that_names_a_file_outside_the_folder_is_not_believed(stage: Stage, path: str) -> None:
    stage.reply = lambda kind, order: ({"files": [FileFacts(path, 1)]}, b"")
    with pytest.raises(TrainingServiceError, match="impossible files"):
        await stage.during(stage.hub.list_files(NODE, "experiments/E"))


async def test_what_is_missing_and_what_has_failed_are_told_apart(stage: Stage) -> None:
    stage.reply = lambda kind, order: ({"missing": True, "error": "stdout is not there"}, b"")
    with pytest.raises(FileNotFoundError, match="gpu-1: stdout is not there"):
        await stage.during(stage.hub.read_file(NODE, "folder", "stdout", 0, 10))
    stage.reply = lambda kind, order: ({"error": "job T.1 still runs in folder"}, b"")
    with pytest.raises(TrainingServiceError, match=r"gpu-1: job T\.1 still runs") as raised:
        await stage.during(stage.hub.remove_folder(NODE, "folder"))
    assert not isinstance(raised.value, ServiceUnavailable)


async def test_a_checkpoint_is_deleted_by_a_keeper_that_can_and_by_no_other(stage: Stage) -> None:
    stage.reply = lambda kind, order: ({}, b"")
    with pytest.raises(KeeperOutdated, match=r"of another version \(0\) and cannot delete checkpoints"):
        await stage.during(stage.hub.remove_checkpoint(NODE, "job/output/checkpoints/1"))
    assert stage.asked == []
    await stage.register("RemoveCheckpoint")
    await stage.during(stage.hub.remove_checkpoint(NODE, "job/output/checkpoints/1"))
    [(kind, order)] = stage.asked
    assert (kind, order["folder"]) == ("RemoveCheckpoint", "job/output/checkpoints/1")


async def test_a_node_whose_keeper_is_away_is_an_error_at_once_with_the_reason() -> None:
    stage = Stage()
    stage.pool.set_status(NODE, NodeStatus.CONNECTING, "its SSH server does not answer")
    for question in (
        stage.hub.list_files(NODE, "folder"),
        stage.hub.read_file(NODE, "folder", "file", 0, 1),
        stage.hub.read_files(NODE, "folder", ["file"], limit=1),
        stage.hub.remove_folder(NODE, "folder"),
        stage.hub.remove_checkpoint(NODE, "folder"),
    ):
        with pytest.raises(ServiceUnavailable, match="node gpu-1 is connecting: its SSH server does not answer"):
            await question
    with pytest.raises(ServiceUnavailable, match="not known"):
        await stage.hub.list_files("elsewhere", "folder")


async def test_a_silent_node_is_an_error_at_once_and_a_held_one_is_asked(stage: Stage) -> None:
    stage.reply = lambda kind, order: ({}, b"")
    stage.pool.hold(NODE, "drained by bob")
    assert await stage.during(stage.hub.list_files(NODE, "folder")) == []
    stage.pool.set_status(NODE, NodeStatus.SILENT, "no report from its keeper for 15 s")
    with pytest.raises(ServiceUnavailable, match="no report from its keeper"):
        await stage.hub.list_files(NODE, "folder")


async def test_an_answer_that_comes_too_late_is_nobodys(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(stage.serve(), name="keeper")
        asking = group.create_task(stage.hub.list_files(NODE, "folder"), name="ask")
        await stage.until_asked(1)
        asking.cancel()
        serving.cancel()
    _, order = stage.asked[0]
    stage.hub.answer(NODE, FileAnswer(stage.session, order["request"], files=[FileFacts("late", 1)]), b"")
    stage.reply = lambda kind, order: ({"files": [FileFacts("fresh", 1)]}, b"")
    stage.asked.clear()
    assert await stage.during(stage.hub.list_files(NODE, "folder")) == [FileFacts("fresh", 1)]


async def test_a_request_that_is_not_answered_is_an_error_in_time_and_is_taken_back(stage: Stage) -> None:
    with pytest.raises(ServiceUnavailable, match=r"has not answered a request for folder within 0\.01 s"):
        await stage.hub.list_files(NODE, "folder", timeout_seconds=0.01)
    batch = await stage.hub.poll(NODE, CommandPoll(stage.session, 0, 0.0))
    assert batch.commands == []


async def test_a_new_session_ends_the_questions_of_the_one_before_and_refuses_their_answers(stage: Stage) -> None:
    async def ask() -> None:
        with pytest.raises(ServiceUnavailable, match="ended before it had answered"):
            await stage.hub.list_files(NODE, "folder", timeout_seconds=60)

    before = stage.session
    async with asyncio.TaskGroup() as group:
        for _ in range(20):  # more than are put to a keeper at once
            group.create_task(ask(), name="ask")
        serving = group.create_task(stage.serve(), name="keeper")
        await stage.until_asked(8)
        await stage.register()
        await serving
    with pytest.raises(UnknownSession):
        stage.hub.answer(NODE, FileAnswer(before, stage.asked[0][1]["request"]), b"")


async def test_only_so_many_questions_are_put_at_once_and_all_are_answered(stage: Stage) -> None:
    questions = 30
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(stage.serve(), name="keeper")
        asking = [group.create_task(stage.hub.list_files(NODE, f"{n}", timeout_seconds=60)) for n in range(questions)]
        await stage.until_asked(8)
        assert len(stage.asked) == 8
        stage.reply = lambda kind, order: ({"files": [FileFacts(order["folder"], 1)]}, b"")
        for _, order in list(stage.asked):
            answer = FileAnswer(stage.session, order["request"], files=[FileFacts(order["folder"], 1)])
            stage.hub.answer(NODE, answer, b"")
        found = [await task for task in asking]
        serving.cancel()
    assert [files[0].path for files in found] == [f"{n}" for n in range(questions)]


async def test_a_keeper_reads_an_archive_only_while_it_is_told_to_fetch_it(stage: Stage, tmp_path: Path) -> None:
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(b"0123456789")
    await stage.register("FetchArchive")
    asked = ContentRequest(stage.session, "abc", 4)
    with pytest.raises(UnknownContent):
        await stage.hub.content(NODE, asked)
    fetching = asyncio.ensure_future(stage.hub.fetch_archive(NODE, archive, "abc", "code/x"))
    batch = await stage.hub.poll(NODE, CommandPoll(stage.session, 0, 60.0))
    order = batch.commands[0].order
    assert (order["folder"], order["sha256"], order["size"]) == ("code/x", "abc", 10)
    assert await stage.hub.content(NODE, asked) == b"456789"
    with pytest.raises(UnknownContent):
        await stage.hub.content(NODE, ContentRequest(stage.session, "other", 0))
    with pytest.raises(UnknownSession):
        await stage.hub.content(NODE, ContentRequest("of before", "abc", 0))
    for offset in (-1, 2**63 - 1):
        with pytest.raises(UnknownContent):
            await stage.hub.content(NODE, ContentRequest(stage.session, "abc", offset))
    stage.hub.answer(NODE, FileAnswer(stage.session, order["request"]), b"")
    await fetching
    with pytest.raises(UnknownContent):
        await stage.hub.content(NODE, asked)


async def test_a_keeper_that_cannot_fetch_is_not_asked_to(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(TrainingServiceError, match="is of another version"):
        await stage.hub.fetch_archive(NODE, tmp_path / "code.tar.gz", "abc", "code/x")
