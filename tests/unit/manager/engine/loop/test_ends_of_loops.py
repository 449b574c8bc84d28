"""Whatever ends an experiment's loop answers everyone who waits for it and gives its places back."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.messages import Inbox
from proctor.manager.errors import Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import jobs
from proctor.training_services.base import SupportsNodes, TrainingService
from proctor.training_services.in_memory.scripts import hang
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Device

CONFIG = SMALL | {"trialConcurrency": 4, "trialGpuNumber": 1, "maxTrialNumber": 1}


class FragileService(InMemoryTrainingService, SupportsNodes):
    """Its jobs run on node `m1`; its `run` fails on request."""

    def __init__(self, broken: asyncio.Event, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._broken = broken

    def node_ids(self) -> tuple[str, ...]:
        return ("m1",)

    async def run(self) -> None:
        await self._broken.wait()
        raise RuntimeError("a fault of this program")


class Scene(Simulation):
    """A simulated home with one experiment whose service fails when `broken` is set."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, script=hang)
        self.folder = folder
        self.broken = asyncio.Event()

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return FragileService(self.broken, self._script, platform=memory, now=self.clock.now)


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


@pytest.mark.parametrize("turns", range(12))
@played(play)
async def test_requests_under_way_are_answered_when_the_loop_fails(scene: Scene, /, turns: int) -> None:
    """`turns`: of the event loop between the requests and the failure, which so meets them everywhere on their way."""
    async with scene.manager() as manager:
        manager.pool.add("m1", "remote")
        devices = [Device(index, f"GPU-{index}", "Fake", 80_000, 0, 0) for index in range(4)]
        manager.pool.connect("m1", devices, driver_note="", hostname="m1", version="0", seen_at=1.0)
        await manager.create_experiment(config=CONFIG, directory=str(scene.folder), experiment_id="exp")
        await asyncio.sleep(5.0)
        asked = [asyncio.ensure_future(manager._supervisor.ask("exp", m.AddTrial({"x": 0.5}))) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0.0)
        scene.broken.set()
        async with asyncio.timeout(1000.0):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert {type(answer) for answer in refused} <= {Unavailable}
        assert all("exp" in str(answer) for answer in refused)
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.ERROR
        live = await manager.control.read(lambda c: jobs.live(c, "exp"))
        assert {held.job_id for held in manager.pool.reservations("m1")} == {job.id for job in live}


def test_what_was_taken_from_an_inbox_is_answered_when_it_is_closed() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        inbox = Inbox()
        waiting = asyncio.ensure_future(inbox.ask(m.Pause()))
        late = asyncio.ensure_future(inbox.ask(m.StopExperiment()))
        await asyncio.sleep(0.0)
        envelopes = await inbox.take(None)
        assert [envelope.message for envelope in envelopes] == [m.Pause(), m.StopExperiment()]
        envelopes[0].resolve(7)
        inbox.close(Unavailable("the loop has failed"))
        assert await waiting == 7
        for asked in (late, inbox.ask(m.StopExperiment())):
            with pytest.raises(Unavailable, match="the loop has failed"):
                await asked

    run_virtual(main)
