"""Silence and loss of nodes, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.training_services.keepers.heartbeats import HeartbeatMonitor
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import Registration, ReportHeader

HEARTBEAT = 5.0
SILENT_AFTER = 3
LIMIT = 60.0
START = 1_700_000_000.0


class Stage:
    """A watch over nodes `a` and `b`, which are reached over a network, in a loop whose time jumps."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.suspended = 0.0  # what the wall clock has more than the loop's
        self.lost: list[str] = []
        self.absent: list[str] = []
        self.empty: set[str] = set()
        self.pool = NodePool()
        self.watch = HeartbeatMonitor(
            self.pool,
            heartbeat_seconds=HEARTBEAT,
            silent_after=SILENT_AFTER,
            now=lambda: START + loop.time() + self.suspended,
            on_lost=self._note_lost,
        )
        for node_id in ("a", "b"):
            self.pool.add(node_id, "remote")
            self.watch.limit(node_id, LIMIT)

    def _note_lost(self, node_id: str, clause: str, is_lost: bool) -> bool:
        (self.lost if is_lost else self.absent).append(node_id)
        return node_id not in self.empty

    def connect(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.watch.connect(node_id, Registration("k", 1, "boot", node_id, "0", "3.11", [], []))

    def status(self, node_id: str) -> NodeStatus:
        return self.pool.node(node_id).status

    async def speak(self, *node_ids: str, for_seconds: float) -> None:
        """These nodes send their heartbeats; the others are silent."""
        ends = self.loop.time() + for_seconds
        while self.loop.time() < ends:
            await asyncio.sleep(HEARTBEAT / 2)
            for node_id in node_ids:
                self.watch.record(node_id, ReportHeader("s"))


def played(*connected: str) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[], None]]:
    """A test that plays a scene in a loop whose time jumps; these nodes are connected when it begins."""

    def make_test(scene: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
        async def play(loop: VirtualTimeLoop) -> None:
            stage = Stage(loop)
            stage.connect(*connected)
            await scene(stage)
            stage.watch.close()

        return lambda: run_virtual(play)

    return make_test


@played("a", "b")
async def test_a_silent_node_is_called_silent_and_after_its_limit_lost_once(stage: Stage) -> None:
    await stage.speak("b", for_seconds=(SILENT_AFTER + 2) * HEARTBEAT)
    assert stage.status("a") is NodeStatus.SILENT
    assert "no report from its keeper for 15 s; its trials keep running" in stage.pool.node("a").reason
    await stage.speak("b", for_seconds=2 * LIMIT)
    assert stage.lost == ["a"]
    assert stage.status("a") is NodeStatus.LOST
    assert "its trials were abandoned" in stage.pool.node("a").reason
    assert stage.status("b") is NodeStatus.CONNECTED


@played("a", "b")
async def test_a_word_in_time_begins_a_fresh_window(stage: Stage) -> None:
    for _ in range(3):
        await stage.speak("b", for_seconds=LIMIT - 3 * HEARTBEAT)
        stage.watch.record("a", ReportHeader("s"))
        assert stage.status("a") is NodeStatus.CONNECTED
    assert stage.lost == []


@played("a", "b")
async def test_a_machine_that_was_reached_in_the_last_moment_gives_its_keeper_time_to_register(stage: Stage) -> None:
    await stage.speak("b", for_seconds=LIMIT)
    stage.watch.reach("a")
    await stage.speak("b", for_seconds=1.5 * HEARTBEAT)
    assert stage.lost == []
    stage.connect("a")
    assert stage.status("a") is NodeStatus.CONNECTED


@played("a", "b")
async def test_a_machine_that_is_reached_again_and_again_without_its_keeper_is_lost(stage: Stage) -> None:
    for _ in range(int(LIMIT / HEARTBEAT) + 4):
        await stage.speak("b", for_seconds=HEARTBEAT)
        stage.watch.reach("a")
        stage.watch.reach("unknown")
    assert stage.lost == ["a"]


@played("a", "b")
async def test_reaching_a_machine_early_does_not_bring_its_loss_nearer(stage: Stage) -> None:
    await stage.speak("b", for_seconds=2 * HEARTBEAT)
    stage.watch.reach("a")
    await stage.speak("b", for_seconds=LIMIT - 4 * HEARTBEAT)
    assert stage.lost == []
    await stage.speak("b", for_seconds=3 * HEARTBEAT)
    assert stage.lost == ["a"]


@played("a", "b")
async def test_nodes_that_are_all_gone_are_silent_but_never_lost(stage: Stage) -> None:
    await stage.speak(for_seconds=10 * LIMIT)
    assert stage.lost == []
    assert stage.status("a") is stage.status("b") is NodeStatus.SILENT


@played("a", "b")
async def test_a_single_missed_heartbeat_never_loses_a_node_however_short_its_limit(stage: Stage) -> None:
    stage.watch.limit("a", HEARTBEAT / 2)
    for _ in range(5):
        await stage.speak("b", for_seconds=1.5 * HEARTBEAT)
        stage.watch.record("a", ReportHeader("s"))
    assert stage.lost == []
    await stage.speak("b", for_seconds=3 * HEARTBEAT)
    assert stage.lost == ["a"]


@played("a", "b")
async def test_what_is_to_stop_on_nodes_that_are_all_gone_is_given_up_after_their_limit(stage: Stage) -> None:
    await stage.speak(for_seconds=LIMIT - 2 * HEARTBEAT)
    assert stage.absent == []
    stage.loop.jump(10 * LIMIT)  # SIGSTOP
    await stage.speak(for_seconds=LIMIT - 2 * HEARTBEAT)
    assert stage.absent == []
    await stage.speak(for_seconds=4 * HEARTBEAT)
    assert {"a", "b"} == set(stage.absent)
    assert stage.lost == []
    reported = len(stage.absent)
    await stage.speak("a", "b", for_seconds=LIMIT)
    assert len(stage.absent) == reported


@played()
async def test_the_managers_own_machine_does_not_prove_that_the_network_is_up(stage: Stage) -> None:
    stage.pool.add("local", "local")
    stage.watch.limit("local", None)
    stage.connect("a", "local")
    await stage.speak("local", for_seconds=10 * LIMIT)
    assert stage.lost == []


@played("a", "b")
async def test_time_in_which_the_manager_was_stopped_or_the_machine_slept_is_not_held_against_a_node(
    stage: Stage,
) -> None:
    await stage.speak("b", for_seconds=LIMIT / 2)
    stage.loop.jump(10 * LIMIT)  # SIGSTOP: both clocks advance, no report arrives
    await stage.speak("b", for_seconds=LIMIT - 2 * HEARTBEAT)
    assert stage.lost == []
    stage.suspended = 10 * LIMIT  # a laptop's lid: the monotonic clock stood still
    await stage.speak("b", for_seconds=LIMIT - 2 * HEARTBEAT)
    assert stage.lost == []
    await stage.speak("b", for_seconds=4 * HEARTBEAT)
    assert stage.lost == ["a"]


@played("b")
async def test_a_node_that_never_came_back_after_a_restart_of_the_manager_is_lost_too(stage: Stage) -> None:
    await stage.speak("b", for_seconds=LIMIT + 2 * HEARTBEAT)
    assert stage.lost == ["a"]


@played("a", "b")
async def test_a_node_with_nothing_to_lose_is_not_called_lost(stage: Stage) -> None:
    stage.empty = {"a"}
    await stage.speak("b", for_seconds=2 * LIMIT)
    assert stage.status("a") is NodeStatus.SILENT


@played("a", "b")
async def test_a_better_reason_is_not_replaced_by_silence(stage: Stage) -> None:
    stage.pool.set_status("a", NodeStatus.FAILED, "its SSH server does not answer")
    await stage.speak("b", for_seconds=LIMIT / 2)
    assert stage.pool.node("a").reason == "its SSH server does not answer"


@played("a", "b")
async def test_a_lost_node_that_comes_back_can_be_lost_again(stage: Stage) -> None:
    await stage.speak("b", for_seconds=2 * LIMIT)
    stage.connect("a")
    assert stage.status("a") is NodeStatus.CONNECTED
    await stage.speak("b", for_seconds=2 * LIMIT)
    assert stage.lost == ["a", "a"]


@played("a", "b")
async def test_a_node_that_is_watched_no_more_is_never_lost(stage: Stage) -> None:
    stage.watch.stop("a")
    await stage.speak("b", for_seconds=2 * LIMIT)
    assert stage.lost == []


@played("a")
async def test_what_a_keeper_says_of_its_node_is_forgotten_when_it_says_it_no_more(stage: Stage) -> None:
    stage.watch.record("a", ReportHeader("s", notes=["only 3 MiB are free"]))
    assert stage.pool.node("a").notes == ("only 3 MiB are free",)
    stage.watch.record("a", ReportHeader("s"))
    assert stage.pool.node("a").notes == ()
