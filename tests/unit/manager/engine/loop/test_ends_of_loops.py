"""Whatever ends an experiment's loop answers everyone who waits for it and gives its places back."""

import asyncio
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, MachineService, Scene, played

from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.messages import Inbox
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import jobs
from proctor.training_services.in_memory.scripts import hang


class FragileService(MachineService):
    """Its `run` fails on request."""

    async def run(self) -> None:
        await self.scene.ending.wait()
        raise RuntimeError("a fault of this program")


class FragileScene(Scene):
    """Its service fails when `ending` is set."""

    service = FragileService
    config = SMALL | {"trialConcurrency": 4, "trialGpuNumber": 1, "maxTrialNumber": 1}

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ending = asyncio.Event()


play = partial(small_experiments.play, kind=FragileScene, script=hang)


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(12))
@played(play)
async def test_requests_under_way_are_answered_when_the_loop_fails(
    scene: FragileScene, manager: Manager, /, turns: int
) -> None:
    """`turns`: of the event loop between the requests and the failure, which so meets them everywhere on their way."""
    scene.connect("m1", gpus=4)
    await scene.create(seconds=5.0)
    asked = [asyncio.ensure_future(manager._supervisor.ask("exp", m.AddTrial({"x": 0.5}))) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0.0)
    scene.ending.set()
    async with asyncio.timeout(1000.0):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    assert {type(answer) for answer in refused} <= {Unavailable}
    assert all("exp" in str(answer) for answer in refused)
    assert (await scene.until_ended()).status is ExperimentStatus.ERROR
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
