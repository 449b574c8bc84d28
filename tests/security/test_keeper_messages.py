"""Messages of a keeper that are damaged or made to do harm: each is taken or refused, none fails inside the manager,
and no other keeper or job notices."""

import asyncio
import copy
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.hub_manager import Listener
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.manager.api.keepers import MAX_HELLO_BYTES, keeper_application
from proctor.training_services.keepers import hub
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import (
    Chunk,
    CommandPoll,
    ContentRequest,
    Device,
    DeviceProcess,
    End,
    EndReason,
    Exit,
    FileAnswer,
    FileFacts,
    JobReport,
    Launch,
    Lease,
    Registration,
    ReportHeader,
    Start,
    to_json,
)

LINE = b'{"kind":"final","value":1.0,"time":1.0}\n'
DEVICE = Device(0, "GPU-a", "H", 100, 1, 2, [DeviceProcess(5, 6, "T.1")], [Lease(0, "ann", "T.1", 7, "now")])
EXIT = Exit(EndReason.EXITED_OK, 0, None, 100.0, 200.0, "detail", 1, [0])
JOB = JobReport("T.1", "token", 7, 100.0, {"0": 40}, None, "e1")
STRANGE: list[Any] = [None, True, -1, 2**31, 2**63, 10**400, 0.5, -1.0, 1e300, math.nan, math.inf, [], {}, "", "0"]
STRANGE += [
    "\x00",
    "\ud800",
    "\u202e\x1b]0;x\x07",
    "x" * 100_000,
    "٣",
    "9" * 30,
    "../..",
    [[]],
    {"": None},
    "T.2",
    "U.1",
]
HARD = [None, -1, 2**63, 10**400, 1e300, math.nan, "\ud800", "9" * 30, [], {}]
RAW = [b"", b"\xff", b"null", b"[" * 100_000, b'{"a":' * 100_000, b'{"session":"\xed\xa0\x80"}', b"\xff\xfe{\x00}\x00"]


class Stage:
    """A hub with two nodes, each with a job that runs, behind the keepers' routes."""

    def __init__(self) -> None:
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool)
        self.experiment = Listener()
        self.hub.attach("e1", self.experiment)
        transport = httpx.ASGITransport(keeper_application(self.hub))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://keeper")
        self.sessions: dict[str, str] = {}

    async def open(self) -> None:
        await self.hub.mark_reattached()
        for node, job in (("one", "T.1"), ("two", "U.1")):
            self.pool.add(node, "remote")
            self.hub.add_node(node, f"secret of {node}")
            self.hub.expect(job, "token", "e1")
            self.hub.send(node, Launch(job, "token", "e1", job, 0, "/job", "true", "/", "{}", None))
            await self.register(node)
            await self.post(node, "commands", to_json(CommandPoll(self.sessions[node], 0, 0.0)))

    async def register(self, node: str) -> None:
        self.sessions[node] = (await self.post(node, "register", registration())).json()["session"]

    async def post(self, node: str, name: str, body: Any, data: bytes = b"") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer secret of {node}"}
        return await self.client.post(f"/api/v1/keepers/{node}/{name}", content=content + data, headers=headers)


def registration() -> dict[str, Any]:
    return to_json(Registration("k", 1, "boot", "host", "0", "3.11", [DEVICE], [JOB]))


def messages(session: str) -> dict[str, tuple[dict[str, Any], bytes]]:
    """A sound message of each kind, with the bytes that follow it."""
    header = ReportHeader(
        session,
        chunks=[Chunk("T.1", "token", "0", 0, len(LINE))],
        starts=[Start("T.1", "token", 7, 100.0)],
        ends=[End("T.1", "token", EXIT)],
        devices=[DEVICE],
        disk_free_mb=5,
        notes=["a note"],
        full={"": "full"},
        stopped={"T.1": "held"},
    )
    answer = FileAnswer(session, "request", "", False, [FileFacts("stdout", 4, 1.0)], False)
    return {
        "hello": ({"nonce": "00ff"}, b""),
        "register": (registration(), b""),
        "commands": (to_json(CommandPoll(session, 0, 0.0)), b""),
        "report": (to_json(header), b"\n" + LINE),
        "answer": (to_json(answer), b"\ntext"),
        "content": (to_json(ContentRequest(session, "abc", 0)), b""),
    }


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*above, key))


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, list[tuple[tuple[Any, ...], str, Any]]]:
    """The name of a message, and what is done to which places of it."""
    name = draw(st.sampled_from(sorted(SOUND)))
    body, _ = SOUND[name]
    place = st.sampled_from(list(places(body)))
    deed = st.sampled_from(["replace", "replace", "remove", "repeat", "add"])
    return name, draw(st.lists(st.tuples(place, deed, st.sampled_from(STRANGE)), min_size=1, max_size=3))


SOUND = messages("session")


def mutated(body: Any, deeds: list[tuple[tuple[Any, ...], str, Any]]) -> Any:
    body = copy.deepcopy(body)
    for place, deed, value in deeds:
        if not place:
            body = value if deed == "replace" else body
            continue
        try:
            holder = body
            for key in place[:-1]:
                holder = holder[key]
            if deed == "replace":
                holder[place[-1]] = value
            elif deed == "remove":
                del holder[place[-1]]
            elif deed == "repeat" and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[place[-1]]))
            elif isinstance(holder, dict):
                holder[str(value)[:50]] = value
        except (LookupError, TypeError):
            continue  # an earlier deed has taken it away
    return body


def check_storable(value: Any) -> None:
    """What reaches the experiments and the pages can be stored and shown."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, int):
        assert -(2**63) <= value < 2**63
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_storable(key)
            check_storable(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_storable(item)


@pytest.fixture(autouse=True)
def no_poll_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LONGEST_POLL_SECONDS", 0.001)


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.open()
    yield stage
    await stage.client.aclose()
    stage.hub.close()


@pytest.fixture
async def stage(anyio_backend: str) -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


async def check_others(stage: Stage) -> None:
    """The other node's job has not been touched, and its keeper is heard."""
    assert all(change.job_id != "U.1" or change.node_id == "two" for change in stage.experiment.changes)
    assert all(job_id != "U.1" for job_id, _ in stage.experiment.stored)
    answer = await stage.post("two", "report", to_json(ReportHeader(stage.sessions["two"])), b"\n")
    assert answer.status_code == 200
    assert answer.json()["fenced"] == []
    for change in stage.experiment.changes:
        check_storable(asdict(change))
    for node in stage.pool.nodes():
        check_storable(asdict(node))
    assert not stage.hub.is_over("two", "U.1")


async def is_taken(stage: Stage, name: str, deeds: list[tuple[tuple[Any, ...], str, Any]]) -> bool:
    """Send a message to which this was done. Fails where it is neither taken nor refused, or where others notice."""
    body, data = messages(stage.sessions["one"])[name]
    answer = await stage.post("one", name, mutated(body, deeds), data)
    assert answer.status_code in (200, 400, 401, 404, 409, 422), (deeds, answer.text)
    await check_others(stage)
    return answer.status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(SOUND))
async def test_a_message_with_one_strange_value_is_taken_or_refused(name: str) -> None:
    """After one that is taken the next one finds a fresh stage; one that is refused changes nothing."""
    rest = [[(place, "replace", value)] for place in places(SOUND[name][0]) for value in HARD]
    while rest:
        async with staged() as stage:
            while rest and not await is_taken(stage, name, rest.pop()):
                pass


@pytest.mark.thorough
@pytest.mark.anyio
@settings(max_examples=200, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(mutation=mutations())
async def test_a_mutated_message_is_taken_or_refused(mutation: tuple[str, Any], anyio_backend: str) -> None:
    async with staged() as stage:
        await is_taken(stage, *mutation)


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(SOUND))
async def test_what_is_no_message_is_refused(stage: Stage, name: str) -> None:
    for raw in RAW:
        answer = await stage.post("one", name, raw)
        is_refused_unread = name == "hello" and len(raw) > MAX_HELLO_BYTES
        assert answer.status_code == (413 if is_refused_unread else 400), (raw[:20], answer.text)
        assert len(answer.text) < 2000
    await check_others(stage)


@pytest.mark.anyio
async def test_the_sound_messages_are_taken(stage: Stage) -> None:
    for name, (body, data) in messages(stage.sessions["one"]).items():
        if name == "register":
            continue
        answer = await stage.post("one", name, body, data)
        wanted = 404 if name == "content" else 200  # it was not asked to fetch anything
        assert answer.status_code == wanted, (name, answer.text)
    assert stage.experiment.stored == {("T.1", 0): LINE}


async def test_a_keeper_reads_no_archive_that_another_keeper_was_asked_to_fetch(stage: Stage, tmp_path: Path) -> None:
    archive = tmp_path / "code.tar.gz"
    archive.write_bytes(b"the code of one")
    fetches = registration() | {"commands": ["FetchArchive"]}
    stage.sessions["one"] = (await stage.post("one", "register", fetches)).json()["session"]
    fetching = asyncio.ensure_future(stage.hub.fetch_archive("one", archive, "abc", "code/x"))
    try:
        poll = to_json(CommandPoll(stage.sessions["one"], 0, 60.0))
        while not (await stage.post("one", "commands", poll)).json()["commands"]:
            pass
        asked = to_json(ContentRequest(stage.sessions["one"], "abc", 4))
        assert (await stage.post("one", "content", asked)).content == b"code of one"
        assert (await stage.post("two", "content", asked)).status_code == 409
        theirs = to_json(ContentRequest(stage.sessions["two"], "abc", 0))
        assert (await stage.post("two", "content", theirs)).status_code == 404
        assert (await stage.client.post("/api/v1/keepers/one/content", json=asked)).status_code == 401
    finally:
        fetching.cancel()
