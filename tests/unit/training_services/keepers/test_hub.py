"""The hub with a client that records and a keeper that is played by calling the hub's methods."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from proctor.training_services.base import JournalChunk, SoftStop, StatusChange, TrialJobStatus
from proctor.training_services.errors import (
    MalformedReport,
    ManagerLeaving,
    SubmissionRefused,
    UnknownNode,
    UnknownSession,
)
from proctor.training_services.keepers.hub import HubClient, KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import (
    Cancel,
    Chunk,
    Command,
    CommandPoll,
    End,
    EndReason,
    Exit,
    JobReport,
    Launch,
    RefusedCommand,
    Registration,
    ReportAnswer,
    ReportHeader,
    Start,
    Update,
    manager_proof,
)

pytestmark = pytest.mark.anyio

NODE = "node-1"
SECRET = "a secret"
LINE = b'{"kind":"final","value":1.0,"time":1.0}\n'


class FakeClient(HubClient):
    """Takes everything, unless told to refuse; `stored` is what it answers."""

    def __init__(self) -> None:
        self.journals: dict[str, bytes] = {}
        self.changes: list[StatusChange] = []
        self.notes: list[StatusChange] = []
        self.refuse_metrics = self.refuse_status = False
        self.strangers: set[str] = set()

    async def store_chunks(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        if self.refuse_metrics:
            raise RuntimeError("not now")
        for chunk in chunks:
            journal = self.journals.get(chunk.job_id, b"")
            self.journals[chunk.job_id] = journal + chunk.data[len(journal) - chunk.offset :]
        return {(c.job_id, c.member): len(self.journals[c.job_id]) for c in chunks if c.job_id not in self.strangers}

    async def deliver_changes(self, changes: Sequence[StatusChange]) -> None:
        if self.refuse_status:
            raise RuntimeError("not now")
        self.changes.extend(changes)

    def queue_change(self, change: StatusChange) -> None:
        self.notes.append(change)

    def statuses(self) -> list[tuple[str, TrialJobStatus]]:
        return [(change.job_id, change.status) for change in self.changes]

    def ends(self) -> list[tuple[str, EndReason | None]]:
        """How the hub has ended jobs, itself."""
        return [(note.job_id, note.exit and note.exit.reason) for note in self.notes]


class FakeKeeper:
    """Speaks the keeper's part."""

    def __init__(self, hub: KeeperHub, node_id: str = NODE) -> None:
        self.hub = hub
        self.node_id = node_id
        self.session = ""
        self.cursor = 0

    async def register(self, *jobs: JobReport) -> list[str]:
        """Begin a session; returns the jobs that the manager does not know."""
        registration = Registration("k", 1, "boot", "host", "0", "3.11", [], list(jobs))
        answer = await self.hub.register(self.node_id, registration)
        self.session, self.cursor, self.offsets = answer.session, 0, answer.offsets
        return answer.unknown

    async def take(self, wait_seconds: float = 0.0) -> list[Command]:
        """Take the commands there are."""
        batch = await self.hub.poll(self.node_id, CommandPoll(self.session, self.cursor, wait_seconds))
        if batch.commands:
            self.cursor = batch.commands[-1].number
        return batch.commands

    async def commands(self) -> list[tuple[str, str]]:
        """(type, job id) of the commands there are."""
        return [(command.type, command.order["job_id"]) for command in await self.take()]

    async def say(
        self,
        *,
        chunks: Sequence[tuple[str, int, bytes]] = (),
        starts: Sequence[str] = (),
        ends: Sequence[str] = (),
        stopped: Mapping[str, str] | None = None,
        waiting: Mapping[str, str] | None = None,
    ) -> ReportAnswer:
        header = ReportHeader(
            self.session,
            chunks=[Chunk(job_id, token(job_id), "0", offset, len(data)) for job_id, offset, data in chunks],
            starts=[Start(job_id, token(job_id), 7, 100.0) for job_id in starts],
            ends=[End(job_id, token(job_id), exit_ok()) for job_id in ends],
            stopped=dict(stopped or {}),
            waiting=dict(waiting or {}),
        )
        return await self.hub.report(self.node_id, header, b"".join(data for _, _, data in chunks))

    async def refuse(self, job_id: str, kind: str, reason: str) -> None:
        """Report that a command about a job cannot be read."""
        refused = [RefusedCommand(job_id, token(job_id), kind, reason)]
        await self.hub.report(self.node_id, ReportHeader(self.session, refused=refused), b"")


def token(job_id: str) -> str:
    return f"token of {job_id}"


def exit_ok() -> Exit:
    return Exit(EndReason.EXITED_OK, 0, None, 100.0, 200.0)


def told(answer: ReportAnswer) -> tuple[list[str], list[str], list[str]]:
    """The jobs whose metrics were acknowledged, whose ends were taken, and that were fenced."""
    return [item.job_id for item in answer.acknowledged], answer.ended, answer.fenced


NOTHING: tuple[list[str], list[str], list[str]] = ([], [], [])


def launch(job_id: str) -> Launch:
    return Launch(job_id, token(job_id), "e1", job_id, 0, "/job", "true", "/", "{}", None)


def found(job_id: str, *, pid: int | None = 7, ended: bool = False) -> JobReport:
    return JobReport(job_id, token(job_id), pid, 100.0, exit=exit_ok() if ended else None)


class Stage:
    """A hub with one node, one attached experiment and a keeper that has not registered."""

    def __init__(self, patience: float = 0.01) -> None:
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, heartbeat_seconds=0.01, reattach_patience_seconds=patience)
        self.client = FakeClient()
        self.hub.attach("e1", self.client)
        self.keeper = self.add_node(NODE)

    def submit(self, *job_ids: str, experiment_id: str = "e1") -> None:
        for job_id in job_ids:
            self.hub.expect(job_id, token(job_id), experiment_id)
            self.hub.send(NODE, launch(job_id))

    async def hand_over(self, *job_ids: str) -> None:
        """Submit jobs, and have the keeper take them."""
        self.submit(*job_ids)
        await self.keeper.take()

    def resume(self, *job_ids: str) -> None:
        """Jobs of an experiment that is attached again."""
        for job_id in job_ids:
            self.hub.expect(job_id, token(job_id), "e1")
            self.hub.resume_launch(NODE, launch(job_id))

    def cancel(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.hub.send(NODE, Cancel(job_id, token(job_id)))

    def add_node(self, node_id: str) -> FakeKeeper:
        """Another node, whose keeper is known and has not registered."""
        self.pool.add(node_id, "remote")
        self.hub.add_node(node_id, SECRET)
        return FakeKeeper(self.hub, node_id)


@pytest.fixture
async def restarted(anyio_backend: str) -> AsyncIterator[Stage]:
    """A manager that has not reattached its experiments yet."""
    stage = Stage()
    yield stage
    stage.hub.close()


@pytest.fixture
async def stage(restarted: Stage) -> Stage:
    await restarted.hub.mark_reattached()
    return restarted


@pytest.fixture
async def connected(stage: Stage) -> Stage:
    """Its keeper has registered."""
    await stage.keeper.register()
    return stage


async def test_a_keeper_is_known_by_its_secret_and_knows_the_manager_by_it(stage: Stage) -> None:
    assert stage.hub.hello(NODE, "00ff") == manager_proof(SECRET, "00ff")
    assert stage.hub.authenticate(NODE, SECRET)
    assert not stage.hub.authenticate(NODE, "another secret")
    assert not stage.hub.authenticate("unknown", SECRET)
    with pytest.raises(UnknownNode):
        stage.hub.hello("unknown", "00ff")


async def test_registering_connects_the_node(stage: Stage) -> None:
    assert stage.pool.node(NODE).status is NodeStatus.CONNECTING
    await stage.keeper.register()
    assert stage.pool.node(NODE).status is NodeStatus.CONNECTED
    assert stage.pool.node(NODE).hostname == "host"


async def test_a_launch_wakes_the_poll_that_waits_for_it(connected: Stage) -> None:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        polling = group.create_task(connected.keeper.take(wait_seconds=60.0))
        await asyncio.sleep(0)
        connected.submit("a.1")
    assert [command.type for command in polling.result()] == ["Launch"]


async def test_commands_are_repeated_until_the_cursor_passes_them(connected: Stage) -> None:
    connected.submit("a.1", "b.1")
    first = await connected.keeper.take()
    connected.keeper.cursor = first[0].number
    assert await connected.keeper.take() == first[1:]
    assert await connected.keeper.take() == []


async def test_a_session_that_is_not_the_newest_must_register_again(connected: Stage) -> None:
    old = FakeKeeper(connected.hub)
    old.session = connected.keeper.session
    polling = asyncio.ensure_future(old.take(wait_seconds=60.0))
    await asyncio.sleep(0)
    await connected.keeper.register()
    with pytest.raises(UnknownSession):
        await asyncio.wait_for(polling, 20)
    with pytest.raises(UnknownSession):
        await old.say()


async def test_a_report_goes_to_its_experiment_and_is_acknowledged_when_taken(connected: Stage) -> None:
    await connected.hand_over("a.1")
    answer = await connected.keeper.say(chunks=[("a.1", 0, LINE)], starts=["a.1"], ends=["a.1"])
    assert told(answer) == (["a.1"], ["a.1"], [])
    assert [(item.member, item.offset) for item in answer.acknowledged] == [("0", len(LINE))]
    assert connected.client.statuses() == [("a.1", TrialJobStatus.RUNNING), ("a.1", TrialJobStatus.ENDED)]
    assert connected.client.journals == {"a.1": LINE}


async def test_what_an_experiment_does_not_take_is_not_acknowledged_and_does_not_hold_up_another(
    stage: Stage,
) -> None:
    other = FakeClient()
    stage.hub.attach("e2", other)
    await stage.keeper.register()
    stage.submit("a.1")
    stage.submit("b.1", experiment_id="e2")
    stage.client.refuse_metrics = True
    answer = await stage.keeper.say(chunks=[("a.1", 0, LINE), ("b.1", 0, LINE)], ends=["a.1", "b.1"])
    assert told(answer) == (["b.1"], ["b.1"], [])
    assert stage.client.changes == []  # the end waits for the metrics
    stage.client.refuse_metrics = False
    assert (await stage.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1"])).ended == ["a.1"]
    assert stage.client.journals == {"a.1": LINE}


async def test_an_end_is_told_only_when_all_metrics_before_it_are_stored(connected: Stage) -> None:
    connected.submit("a.1", "b.1")
    connected.client.journals["a.1"] = LINE[:10]

    async def store_half(chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        return {(chunk.job_id, chunk.member): chunk.end - 1 for chunk in chunks}

    connected.client.store_chunks = store_half  # type: ignore[method-assign]
    assert (await connected.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1", "b.1"])).ended == ["b.1"]
    assert connected.client.statuses() == [("b.1", TrialJobStatus.ENDED)]


async def test_a_start_that_was_not_taken_is_noted_because_keepers_say_it_once(connected: Stage) -> None:
    connected.submit("a.1")
    connected.client.refuse_status = True
    await connected.keeper.say(starts=["a.1"])
    assert [(note.job_id, note.status) for note in connected.client.notes] == [("a.1", TrialJobStatus.RUNNING)]


async def test_experiments_hear_once_that_a_job_is_held_up_by_a_suspended_process_and_that_it_goes_on(
    connected: Stage,
) -> None:
    connected.submit("a.1", "b.1")
    connected.submit("c.1", experiment_id="not attached")
    await connected.keeper.say(starts=["a.1"])
    stopped = {"": "no trial can be started: …", "a.1": "its reaper …", "b.1": "it cannot be started: …", "c.1": "…"}
    for printed in (stopped, stopped, {}, {}):
        await connected.keeper.say(stopped=printed)
    notes = sorted(connected.client.notes, key=lambda note: note.job_id)
    assert [(note.job_id, note.status, note.detail) for note in notes] == [
        ("a.1", TrialJobStatus.RUNNING, "its reaper …"),
        ("a.1", TrialJobStatus.RUNNING, ""),
        ("b.1", TrialJobStatus.SUBMITTED, "waiting: it cannot be started: …"),
        ("b.1", TrialJobStatus.SUBMITTED, f"waiting: it is being started on node {NODE}"),
    ]


async def test_experiments_hear_that_a_trial_stands_still_until_its_scheduler_has_decided(connected: Stage) -> None:
    connected.submit("a.1")
    await connected.keeper.say(starts=["a.1"])
    connected.client.notes.clear()
    for stopped in ({}, {"a.1": "its reaper …"}, {}):
        await connected.keeper.say(waiting={"a.1": "waits for the verdict"}, stopped=stopped)
    await connected.keeper.say()
    details = [note.detail for note in connected.client.notes]
    assert details == ["waits for the verdict", "its reaper …", "waits for the verdict", ""]
    assert connected.pool.stop_of(NODE, "a.1") == ""


async def test_a_node_that_cannot_start_trials_takes_no_new_ones_until_it_can(connected: Stage) -> None:
    await connected.keeper.say(stopped={"": "no trial can be started: …", "a.1": "its reaper …"})
    assert connected.pool.obstacle(NODE) == f"node {NODE} takes no new jobs: no trial can be started: …"
    assert connected.pool.stop_of(NODE, "a.1") == "its reaper …"
    await connected.keeper.say(stopped={"a.1": "its reaper …"})
    assert connected.pool.obstacle(NODE) == "", "a suspended reaper holds up its own trial only"
    await connected.keeper.register()
    assert connected.pool.stop_of(NODE, "a.1") == ""


async def test_an_experiment_that_comes_back_hears_of_jobs_that_are_held_up(connected: Stage) -> None:
    connected.submit("c.1", experiment_id="e2")
    await connected.keeper.say(starts=["c.1"])
    await connected.keeper.say(stopped={"c.1": "its reaper …"})
    late = FakeClient()
    connected.hub.attach("e2", late)
    await connected.keeper.say(stopped={"c.1": "its reaper …"})
    assert [note.detail for note in late.notes][-1:] == ["its reaper …"]


async def test_a_job_nobody_knows_and_a_stale_token_are_fenced(connected: Stage) -> None:
    connected.hub.expect("a.1", "a newer token", "e1")
    answer = await connected.keeper.say(chunks=[("x.1", 0, LINE)], starts=["y.1"], ends=["a.1", "z.1"])
    assert told(answer) == ([], [], ["a.1", "x.1", "y.1", "z.1"])


async def test_a_job_whose_metrics_are_refused_is_fenced_and_forgotten(connected: Stage) -> None:
    connected.submit("a.1")
    connected.client.strangers.add("a.1")
    assert told(await connected.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1"])) == ([], [], ["a.1"])
    assert await connected.keeper.register(found("a.1")) == ["a.1"]


async def test_detaching_a_client_that_was_replaced_does_nothing(stage: Stage) -> None:
    newer = FakeClient()
    stage.hub.attach("e1", newer)
    stage.hub.detach("e1", stage.client)
    await stage.keeper.register()
    stage.submit("a.1")
    assert (await stage.keeper.say(ends=["a.1"])).ended == ["a.1"]
    assert newer.statuses() == [("a.1", TrialJobStatus.ENDED)]


async def test_a_report_whose_lengths_are_wrong_is_malformed(connected: Stage) -> None:
    header = ReportHeader(connected.keeper.session, chunks=[Chunk("a.1", "t", "0", 0, 10)])
    with pytest.raises(MalformedReport, match=r"a\.1"):
        await connected.hub.report(NODE, header, b"short")
    with pytest.raises(MalformedReport, match="10 bytes"):
        await connected.hub.report(NODE, header, b"much too long")
    with pytest.raises(MalformedReport, match="member"):
        await connected.hub.report(NODE, ReportHeader(connected.keeper.session, [Chunk("a.1", "t", "x", 0, 0)]), b"")


# ---- keepers that come back


@pytest.mark.parametrize(
    ("updates", "repeated"),
    [
        ([], [("Launch", "a.1", None, None)]),
        ([(30.0, None)], [("Launch", "a.1", 30.0, None), ("Update", "b.1", 30.0, None)]),
        ([(None, 9), (30.0, None)], [("Launch", "a.1", 30.0, 9), ("Update", "b.1", 30.0, 9)]),
    ],
    ids=["nothing more", "a limit", "a milestone, and a limit that takes nothing away"],
)
async def test_a_keeper_that_comes_back_is_ordered_again_what_it_does_not_have(
    connected: Stage, updates: list[tuple[float | None, int | None]], repeated: list[tuple[object, ...]]
) -> None:
    await connected.hand_over("a.1", "b.1")
    for limit, milestone in updates:
        for job_id in ("a.1", "b.1"):
            connected.hub.send(NODE, Update(job_id, token(job_id), limit, milestone=milestone))
    assert await connected.keeper.register(found("b.1")) == []
    given = ("job_id", "max_duration_seconds", "milestone")
    commands = [(command.type, *map(command.order.get, given)) for command in await connected.keeper.take()]
    assert commands == repeated


async def test_what_was_ordered_while_there_was_no_keeper_reaches_the_next_one(stage: Stage) -> None:
    stage.submit("a.1", "b.1")
    await stage.keeper.register(found("b.1"))
    assert await stage.keeper.commands() == [("Launch", "a.1")]


async def test_a_stop_is_repeated_to_a_keeper_that_comes_back_unless_the_job_has_ended(connected: Stage) -> None:
    await connected.hand_over("a.1", "b.1")
    connected.cancel("a.1", "b.1")
    await connected.keeper.register(found("a.1"), found("b.1", ended=True))
    assert await connected.keeper.commands() == [("Cancel", "a.1")]


async def test_a_job_stopped_before_its_launch_was_handed_over_is_never_launched(connected: Stage) -> None:
    connected.submit("a.1")
    connected.cancel("a.1")
    assert await connected.keeper.take() == []
    assert connected.client.ends() == [("a.1", EndReason.CANCELED)]


async def test_a_stopped_job_that_a_keeper_never_got_ends_when_it_comes_back(connected: Stage) -> None:
    await connected.hand_over("a.1")  # and lost on the way
    connected.cancel("a.1")
    await connected.keeper.register()
    assert await connected.keeper.take() == []
    assert connected.client.ends() == [("a.1", EndReason.CANCELED)]


async def test_a_job_that_ran_and_is_gone_ends_as_unknown(connected: Stage) -> None:
    await connected.hand_over("a.1")
    await connected.keeper.say(starts=["a.1"])
    await connected.keeper.register()
    assert connected.client.ends() == [("a.1", EndReason.EXIT_UNKNOWN)]
    assert await connected.keeper.take() == []


async def test_stored_offsets_are_told_to_a_keeper_that_comes_back(connected: Stage) -> None:
    connected.submit("a.1")
    await connected.keeper.say(chunks=[("a.1", 0, LINE)])
    await connected.keeper.register(found("a.1"))
    assert connected.keeper.offsets == {"a.1": {"0": len(LINE)}}


# ---- managers that come back


async def test_no_job_is_unknown_before_the_experiments_are_reattached(restarted: Stage) -> None:
    assert await restarted.keeper.register(found("a.1"), found("stray.1")) == []
    assert told(await restarted.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1", "stray.1"])) == NOTHING
    restarted.resume("a.1")
    await restarted.hub.mark_reattached()
    assert await restarted.keeper.commands() == [("Cancel", "stray.1")]
    assert told(await restarted.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1", "stray.1"])) == (
        ["a.1"],
        ["a.1"],
        ["stray.1"],
    )


async def test_a_registration_waits_for_the_experiments() -> None:
    stage = Stage(patience=60.0)
    registering = asyncio.ensure_future(stage.keeper.register(found("a.1"), found("stray.1")))
    await asyncio.sleep(0)
    assert not registering.done()
    stage.resume("a.1")
    await stage.hub.mark_reattached()
    assert await asyncio.wait_for(registering, 20) == ["stray.1"]
    stage.hub.close()


async def test_an_adopted_job_that_runs_is_told_as_running(restarted: Stage) -> None:
    await restarted.keeper.register(found("a.1", pid=41), found("b.1", pid=None))
    await restarted.keeper.say(starts=["b.1"])  # said once, before anybody listens
    restarted.resume("a.1", "b.1", "c.1")
    assert [(note.job_id, note.pid) for note in restarted.client.notes] == [("a.1", 41), ("b.1", 7)]
    assert await restarted.keeper.commands() == [("Launch", "c.1")]


async def test_an_adopted_job_that_is_stopped_is_never_taken_for_one_that_was_not_started(restarted: Stage) -> None:
    restarted.resume("a.1")
    restarted.cancel("a.1")
    assert restarted.client.notes == []
    await restarted.hub.mark_reattached()
    await restarted.keeper.register(found("a.1"))
    assert await restarted.keeper.commands() == [("Cancel", "a.1")]


async def test_a_job_is_found_again_or_must_be_sent_again(restarted: Stage) -> None:
    for job_id in ("a.1", "b.1"):
        restarted.hub.expect(job_id, token(job_id), "e1")
        assert restarted.hub.reattach(NODE, job_id) is None  # its keeper is away
    await restarted.hub.mark_reattached()
    await restarted.keeper.register(found("a.1", pid=41))
    assert restarted.hub.reattach(NODE, "a.1") is True
    assert {(note.job_id, note.pid) for note in restarted.client.notes} == {("a.1", 41)}
    assert restarted.hub.reattach(NODE, "b.1") is False
    restarted.cancel("b.1")
    assert restarted.client.notes[-1].exit is not None  # nothing has to be waited for
    assert await restarted.keeper.commands() == []


async def test_a_job_that_has_run_and_is_not_there_any_more_is_not_sent_again(restarted: Stage) -> None:
    restarted.hub.expect("a.1", token("a.1"), "e1", started=True)
    await restarted.hub.mark_reattached()
    await restarted.keeper.register()
    restarted.resume("a.1")
    assert restarted.client.ends() == [("a.1", EndReason.EXIT_UNKNOWN)]
    assert await restarted.keeper.commands() == []


# ---- jobs that no experiment expects


async def test_a_job_that_the_manager_cannot_explain_is_left_alone_and_named(restarted: Stage) -> None:
    asked: list[list[str]] = []

    async def may_be_stopped(strangers: Sequence[JobReport]) -> set[str]:
        asked.append([f"{job.job_id} of {job.experiment_id}" for job in strangers])
        return {"gone.1"}

    lost = JobReport("lost.1", token("lost.1"), 7, 100.0, experiment_id="e9")
    await restarted.keeper.register(lost, found("gone.1"))
    await restarted.hub.mark_reattached(may_be_stopped)
    assert await restarted.keeper.commands() == [("Cancel", "gone.1")]
    assert told(await restarted.keeper.say(chunks=[("lost.1", 0, LINE)], ends=["gone.1"])) == ([], [], ["gone.1"])
    assert [(node_id, job.job_id) for node_id, job in restarted.hub.unknown_jobs()] == [(NODE, "lost.1")]
    assert await restarted.keeper.register(lost, found("gone.1")) == ["gone.1"]
    assert asked == [["lost.1 of e9", "gone.1 of "]] * 3
    assert await restarted.keeper.register() == []
    assert restarted.hub.unknown_jobs() == []


async def test_no_job_is_stopped_while_the_manager_does_not_know_or_cannot_say(restarted: Stage) -> None:
    answers: list[set[str] | Exception | None] = [None, RuntimeError("the database cannot be read"), {"a.1"}]

    async def may_be_stopped(strangers: Sequence[JobReport]) -> set[str] | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    await restarted.hub.mark_reattached(may_be_stopped)
    assert await restarted.keeper.register(found("a.1")) == []
    assert (await restarted.keeper.say(ends=["a.1"])).fenced == []
    assert restarted.hub.unknown_jobs() == []
    await restarted.hub.mark_reattached(may_be_stopped)
    assert await restarted.keeper.commands() == [("Cancel", "a.1")]


# ---- jobs of experiments that are not attached


@pytest.fixture
async def unattached(restarted: Stage) -> Stage:
    """A manager that is ready, and one of whose experiments is not attached; its jobs are a.1, which runs, and b.1,
    which never arrived."""
    restarted.hub.detach("e1")
    restarted.hub.expect("a.1", token("a.1"), "e1", started=True)
    restarted.hub.expect("b.1", token("b.1"), "e1")
    await restarted.hub.mark_reattached()
    return restarted


async def test_a_job_of_an_experiment_that_is_not_attached_goes_on_and_is_not_acknowledged(unattached: Stage) -> None:
    assert await unattached.keeper.register(found("a.1")) == []
    assert told(await unattached.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1"])) == NOTHING
    assert await unattached.keeper.commands() == []
    unattached.hub.attach("e1", unattached.client)
    unattached.hub.resume_launch(NODE, launch("a.1"))
    assert (await unattached.keeper.say(chunks=[("a.1", 0, LINE)], ends=["a.1"])).ended == ["a.1"]
    assert unattached.client.journals == {"a.1": LINE}


async def test_a_job_of_an_experiment_that_is_not_attached_can_be_stopped(unattached: Stage) -> None:
    await unattached.keeper.register(found("a.1"))
    for job_id in ("a.1", "b.1", "a.1"):
        unattached.hub.cancel_unattached(NODE, job_id)
    assert await unattached.keeper.commands() == [("Cancel", "a.1")]
    assert [unattached.hub.is_over(NODE, job_id) for job_id in ("a.1", "b.1")] == [False, True]
    assert (await unattached.keeper.say(ends=["a.1"])).ended == []
    assert unattached.hub.is_over(NODE, "a.1")


async def test_a_job_of_an_experiment_that_is_not_attached_may_save_until_it_is_stopped_at_once(
    unattached: Stage,
) -> None:
    await unattached.keeper.register(found("a.1"))
    soft = SoftStop("the experiment was stopped", 30.0, only_if_able=True)
    for stop in (soft, soft, None, None, soft):
        unattached.hub.cancel_unattached(NODE, "a.1", stop)
    commands = [command.order for command in await unattached.keeper.take()]
    assert [(order["save_seconds"], order["only_if_able"]) for order in commands] == [(30.0, True), (0.0, False)]


async def test_a_stop_without_an_experiment_reaches_a_keeper_that_comes_back(unattached: Stage) -> None:
    unattached.hub.cancel_unattached(NODE, "a.1")
    assert not unattached.hub.is_over(NODE, "a.1")
    await unattached.keeper.register(found("a.1"))
    assert await unattached.keeper.commands() == [("Cancel", "a.1")]
    await unattached.keeper.register(found("a.1", ended=True))
    assert unattached.hub.is_over(NODE, "a.1")


async def test_a_job_that_was_launched_in_this_session_is_known_to_run(connected: Stage) -> None:
    await connected.hand_over("a.1")
    await connected.keeper.say(starts=["a.1"])
    connected.hub.detach("e1")
    assert not connected.hub.is_over(NODE, "a.1")
    connected.hub.cancel_unattached(NODE, "a.1")
    assert await connected.keeper.commands() == [("Cancel", "a.1")]


async def test_a_job_of_an_experiment_that_is_not_attached_is_not_given_up_with_its_node(unattached: Stage) -> None:
    unattached.hub.cancel_unattached(NODE, "a.1")
    assert not unattached.hub._abandon_jobs(NODE, "no report from its keeper for 20 s", True)
    unattached.hub.attach("e1", unattached.client)
    assert unattached.hub._abandon_jobs(NODE, "no report from its keeper for 20 s", True)
    assert unattached.client.ends() == [("a.1", EndReason.CANCELED)]


async def test_a_job_that_was_stopped_before_it_was_found_again_ends_when_it_has_not_arrived(restarted: Stage) -> None:
    restarted.hub.expect("a.1", token("a.1"), "e1")
    assert restarted.hub.reattach(NODE, "a.1") is None
    restarted.cancel("a.1")
    assert restarted.client.notes == []
    await restarted.hub.mark_reattached()
    await restarted.keeper.register()
    assert restarted.client.ends() == [("a.1", EndReason.CANCELED)]


async def test_a_job_that_is_still_being_prepared_is_lost_with_its_node(stage: Stage) -> None:
    stage.hub.expect("a.1", token("a.1"), "e1", node_id=NODE)
    assert stage.hub._abandon_jobs(NODE, "no report from its keeper for 20 s", True)
    assert stage.client.ends() == [("a.1", EndReason.NODE_LOST)]


async def test_an_abandoned_experiment_has_no_jobs_any_more(connected: Stage) -> None:
    connected.submit("a.1")
    connected.submit("b.1", experiment_id="e2")
    assert connected.hub.abandon("e1") == ["a.1"]
    assert await connected.keeper.register(found("a.1"), found("b.1")) == ["a.1"]


# ---- silence


async def test_a_node_without_a_word_falls_silent_with_a_reason_and_is_connected_by_the_next_word(
    connected: Stage,
) -> None:
    async with asyncio.timeout(20):
        while connected.pool.node(NODE).status is not NodeStatus.SILENT:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert "no report from its keeper" in connected.pool.node(NODE).reason
    await connected.keeper.say()
    assert connected.pool.node(NODE).status is NodeStatus.CONNECTED
    assert connected.client.notes == []


async def test_a_node_that_is_silent_for_too_long_is_lost_with_its_jobs(stage: Stage) -> None:
    other = stage.add_node("node-2")
    for node_id in (NODE, "node-2"):
        stage.hub.add_node(node_id, SECRET, lost_after_seconds=0.05)
    await stage.keeper.register()
    stage.submit("a.1")
    async with asyncio.timeout(20):
        while stage.pool.node(NODE).status is not NodeStatus.LOST:
            await other.register()  # the network is up, then
            await asyncio.sleep(0.001)
    assert stage.client.ends() == [("a.1", EndReason.NODE_LOST)]
    with pytest.raises(UnknownSession):
        await stage.keeper.say()
    assert await stage.keeper.register(found("a.1")) == ["a.1"]
    assert stage.pool.node(NODE).status is NodeStatus.CONNECTED


async def test_what_is_to_stop_on_the_only_node_is_given_up_when_that_is_silent_for_too_long(stage: Stage) -> None:
    stage.hub.add_node(NODE, SECRET, lost_after_seconds=0.05)
    await stage.keeper.register()
    await stage.hand_over("a.1", "b.1")
    stage.cancel("a.1")
    async with asyncio.timeout(20):
        while not stage.client.notes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert stage.client.ends() == [("a.1", EndReason.CANCELED)]
    assert await stage.keeper.register(found("a.1"), found("b.1")) == ["a.1"]


async def test_a_hub_that_is_closed_turns_keepers_away(connected: Stage) -> None:
    polling = asyncio.ensure_future(connected.keeper.take(wait_seconds=60.0))
    await asyncio.sleep(0)
    connected.hub.close()
    with pytest.raises(ManagerLeaving):
        await asyncio.wait_for(polling, 20)
    with pytest.raises(ManagerLeaving):
        await connected.keeper.register()


async def test_the_more_nodes_there_are_the_longer_what_is_not_urgent_may_wait_for_company(connected: Stage) -> None:
    assert (await connected.keeper.say()).pause_seconds == 0.0
    for number in range(100):
        await connected.add_node(f"node {number}").register()
    assert (await connected.keeper.say()).pause_seconds == pytest.approx(0.2)


async def test_a_node_can_neither_report_nor_end_nor_hold_up_another_nodes_job(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.keeper.register()
    await stage.hand_over("a.1")
    rogue = stage.add_node("node-2")
    await rogue.register(found("a.1"))
    assert rogue.offsets == {}
    for _ in range(2):
        answer = await rogue.say(chunks=[("a.1", 0, LINE)], starts=["a.1"], ends=["a.1"], stopped={"a.1": "ha"})
        assert told(answer) == NOTHING
    assert (stage.client.changes, stage.client.notes, stage.client.journals) == ([], [], {})
    assert not stage.hub.is_over(NODE, "a.1")
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("node node-2 reports on trial job a.1, which was sent to node node-1;")
    answer = await stage.keeper.say(chunks=[("a.1", 0, LINE)], starts=["a.1"], ends=["a.1"])
    assert told(answer) == (["a.1"], ["a.1"], [])
    assert stage.client.statuses() == [("a.1", TrialJobStatus.RUNNING), ("a.1", TrialJobStatus.ENDED)]


async def test_the_end_of_a_job_without_its_experiment_is_not_believed_of_another_node(stage: Stage) -> None:
    stage.hub.expect("a.1", token("a.1"), "not loaded", node_id=NODE, started=True)
    await stage.keeper.register(found("a.1"))
    rogue = stage.add_node("node-2")
    await rogue.register()
    await rogue.say(ends=["a.1"])
    assert not stage.hub.is_over(NODE, "a.1")
    await stage.keeper.say(ends=["a.1"])
    assert stage.hub.is_over(NODE, "a.1")


async def test_a_launch_that_the_keeper_cannot_read_ends_its_job_with_the_reason(connected: Stage) -> None:
    connected.submit("a")
    await connected.keeper.take()
    await connected.keeper.refuse("a", "Launch", "milestone: expected int, found str")
    [end] = connected.client.notes
    assert end.exit is not None
    assert (end.status, end.exit.reason) == (TrialJobStatus.ENDED, EndReason.INFRASTRUCTURE)
    assert end.exit.detail == "the keeper of node node-1 has refused its Launch: milestone: expected int, found str"
    await connected.keeper.refuse("a", "Launch", "again")
    assert connected.client.notes == [end]


async def test_another_command_that_the_keeper_cannot_read_is_the_reason_of_a_job_that_runs_on(
    connected: Stage,
) -> None:
    connected.submit("a", "b")
    await connected.keeper.take()
    await connected.keeper.say(starts=["a"])
    await connected.keeper.refuse("a", "Update", "milestone: expected int, found str")
    await connected.keeper.refuse("a", "Launch", "it runs: this is not about its start")
    assert [(note.status, note.detail) for note in connected.client.notes] == [
        (
            TrialJobStatus.RUNNING,
            "the keeper of node node-1 has refused its Update: milestone: expected int, found str",
        ),
        (
            TrialJobStatus.RUNNING,
            "the keeper of node node-1 has refused its Launch: it runs: this is not about its start",
        ),
    ]


async def test_what_no_keeper_can_read_is_not_sent(connected: Stage) -> None:
    connected.hub.expect("a", token("a"), "e1")
    order = replace(launch("a"), milestone=2**63)
    for send in (connected.hub.send, connected.hub.resume_launch):
        with pytest.raises(
            SubmissionRefused, match="no keeper can read the Launch of trial job a: milestone: expected a"
        ):
            send(NODE, order)
    assert await connected.keeper.take() == []
