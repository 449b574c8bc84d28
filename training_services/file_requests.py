"""The manager's questions about files on a node, put to the keeper of one session and answered by it, in any order."""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.trial_keeper.protocol import FileAnswer, FileFacts, ListFiles, ReadFile, ReadFiles, RemoveFolder

__all__ = ["MOST_BYTES", "FileOrder", "FileRequests"]

FileOrder = ListFiles | ReadFile | ReadFiles | RemoveFolder

MOST_BYTES = 4 * 1024 * 1024
"""How much one answer of a keeper holds."""
_AT_ONCE = 8

_Answer = tuple[FileAnswer, bytes]


class FileRequests:
    """What was asked of one node's keeper in one session. Every question ends in time, or when the session does.

    They raise FileNotFoundError for what is not on the node, ServiceUnavailable when the keeper does not answer (try
    again), TrainingServiceError with the keeper's sentence when it cannot do it.

    :param push: hands an order to the keeper.
    :param withdraw: takes it back if the keeper was not given it, by its request.
    """

    def __init__(self, node_id: str, *, push: Callable[[FileOrder], None], withdraw: Callable[[str], None]) -> None:
        self._node_id = node_id
        self._push = push
        self._withdraw = withdraw
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._is_closed = False

    async def list_files(self, folder: str, *, timeout_seconds: float) -> list[FileFacts]:
        """The regular files below a folder, by path. The time is that of each answer: long lists come in several."""
        found: list[FileFacts] = []
        while True:
            after = found[-1].path if found else ""
            answer, _ = await self._ask(ListFiles(_new_request(), folder, after), timeout_seconds)
            found += answer.files
            if not answer.more or not answer.files or found[-1].path <= after:
                return found

    async def read_file(self, folder: str, path: str, offset: int, limit: int, *, timeout_seconds: float) -> bytes:
        """At most `limit` bytes of a file from `offset`; a negative one counts from the end, and then no more than
        `MOST_BYTES` are read. The time is that of each `MOST_BYTES`."""
        parts: list[bytes] = []
        wanted, position = limit, offset
        while True:
            order = ReadFile(_new_request(), folder, path, position, min(wanted, MOST_BYTES))
            _, data = await self._ask(order, timeout_seconds)
            parts.append(data)
            wanted -= len(data)
            position += len(data)
            if wanted <= 0 or len(data) < order.limit or offset < 0:
                return b"".join(parts)

    async def read_files(
        self, folder: str, paths: Sequence[str], *, limit: int, timeout_seconds: float
    ) -> dict[str, bytes]:
        """The beginnings of files, each up to `limit` bytes. Those that are not there are missing, and so are those
        that come after `MOST_BYTES` in all."""
        answer, data = await self._ask(ReadFiles(_new_request(), folder, list(paths), limit), timeout_seconds)
        contents: dict[str, bytes] = {}
        position = 0
        for file in answer.files:
            contents[file.path] = data[position : position + file.size]
            position += file.size
        if position != len(data):
            raise TrainingServiceError(
                f"the keeper of node {self._node_id} announces {position} bytes of files; {len(data)} follow"
            )
        return contents

    async def remove_folder(self, folder: str, *, timeout_seconds: float) -> None:
        """Remove a folder with all that is in it; one that is not there is removed already."""
        await self._ask(RemoveFolder(_new_request(), folder), timeout_seconds)

    def answer(self, answer: FileAnswer, data: bytes) -> None:
        """What the keeper says; nobody may be waiting for it any more."""
        waiting = self._waiting.get(answer.request)
        if waiting is not None and not waiting.done():
            waiting.set_result((answer, data))

    def close(self) -> None:
        """The session is over: nothing will be answered any more."""
        self._is_closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._ended())

    async def _ask(self, order: FileOrder, timeout_seconds: float) -> _Answer:
        try:
            async with asyncio.timeout(timeout_seconds), self._turns:
                answer, data = await self._exchange(order)
        except TimeoutError:
            raise ServiceUnavailable(
                f"the keeper of node {self._node_id} has not answered a question about {order.folder} within "
                f"{timeout_seconds:g} s; try again"
            ) from None
        if answer.missing:
            raise FileNotFoundError(f"node {self._node_id}: {answer.error or f'{order.folder} is not there'}")
        if answer.error:
            raise TrainingServiceError(f"node {self._node_id}: {answer.error}")
        if not all(map(_is_sound, answer.files)):
            raise TrainingServiceError(
                f"node {self._node_id}: its keeper tells of files in {order.folder} that cannot be; stop it and start "
                "it again with this manager's version"
            )
        return answer, data

    async def _exchange(self, order: FileOrder) -> _Answer:
        if self._is_closed:
            raise self._ended()
        waiting: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[order.request] = waiting
        self._push(order)
        try:
            return await waiting
        finally:
            del self._waiting[order.request]
            if waiting.cancelled():  # the time is over, or nobody wants to know any more
                self._withdraw(order.request)
            elif waiting.done():
                waiting.exception()  # looked at, lest the loop complains when we are cancelled in the same moment

    def _ended(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"the session with the keeper of node {self._node_id} ended before it had answered; try again"
        )


def _is_sound(file: FileFacts) -> bool:
    """What a keeper says is not believed without a look: sizes are used to cut bytes, paths to name files."""
    is_number = isinstance(file.modified, (int, float)) and not isinstance(file.modified, bool)
    is_below = isinstance(file.path, str) and not {"", ".", ".."} & set(file.path.split("/"))
    return is_below and type(file.size) is int and file.size >= 0 and is_number


def _new_request() -> str:
    return secrets.token_hex(8)
