"""A trial is paused, and resumed in the same turn of the loop: the decision is carried out all the same."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import CheckpointingScene, play, played, saved

from proctor.manager.dispatcher import protocol
from proctor.manager.engine.loop.messages import Inbox, JobsChanged
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.tables import dispatcher_inputs
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

ASHA = {"name": "ASHA", "classArgs": {"type": "promotion", "max_t": 9, "reduction_factor": 3}}


def in_step(form: TrialJobForm) -> Iterable[Step]:
    """A point a second, at the same instants as all other trials, each with a checkpoint."""
    begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint).name)
    x = json.loads(form.parameter_file)["parameters"]["x"]
    for step in range(begin + 1, 10):
        yield ScriptedReport(1.0, x, step=step)
        yield saved(form, step)
    yield Final(1.0, x)


class HeldDecisions:
    """Each decision to resume a trial reaches its loop right behind the end of a job, in the same turn, or a little
    later where there is none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._held: list[protocol.ResumeTrial] = []
        self.joined = 0
        self._post, self._ask = Inbox.post, Inbox.ask
        monkeypatch.setattr(Inbox, "post", lambda inbox, message, lazy=False: self.post(inbox, message, lazy))
        monkeypatch.setattr(Inbox, "ask", lambda inbox, message, *actor: self.ask(inbox, message, *actor))

    def post(self, inbox: Inbox, message: Any, lazy: bool) -> None:
        if isinstance(message, protocol.ResumeTrial):
            self._held.append(message)
            asyncio.get_running_loop().call_later(0.5, self._release, inbox)
        else:
            self._post(inbox, message, lazy=lazy)

    def ask(self, inbox: Inbox, message: Any, *actor: Any) -> Any:
        if isinstance(message, JobsChanged) and any(change.exit is not None for change in message.changes):
            asyncio.get_running_loop().call_soon(self._release, inbox, 1)
        return self._ask(inbox, message, *actor)

    def _release(self, inbox: Inbox, joined: int = 0) -> None:
        held, self._held = self._held, []
        self.joined += joined * len(held)
        for message in held:
            self._post(inbox, message)


@pytest.mark.slow
@pytest.mark.parametrize("places", [2, 5, 9])
@played(play, script=in_step, kind=CheckpointingScene, stop_seconds=0.2)
async def test_every_promotion_is_carried_out(
    scene: CheckpointingScene, manager: Manager, /, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDecisions(monkeypatch)
    await scene.run(maxTrialNumber=30, trialConcurrency=places, seed=5, trialScheduler=ASHA)
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, "exp", 0, 10_000))
    decisions = [
        decision
        for entry in log
        for decision in await manager.control.read(
            lambda c, at=entry.position: dispatcher_inputs.decisions(c, "exp", at)  # type: ignore[misc]
        )
    ]
    assert len(decisions) >= 10
    assert [decision for decision in decisions if not decision.job] == []
    assert TrialStatus.SUCCEEDED in await scene.statuses()
    assert held.joined
