"""The experiment's direction reaches the algorithms: a simulation with a built-in tuner and assessor."""

from collections.abc import Iterable
from typing import Any

import pytest
from fakes.small_experiments import Scene, play, played

from proctor.manager.api.resources import objective
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.tables import trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

SUCCEEDED, STOPPED = TrialStatus.SUCCEEDED, TrialStatus.EARLY_STOPPED
MINIMIZED, MAXIMIZED = ("minimize", [SUCCEEDED, STOPPED, STOPPED], 0.0), ("maximize", [SUCCEEDED] * 3, 2.0)


def ever_greater(form: TrialJobForm) -> Iterable[Step]:
    """Each trial reports greater values than those before it."""
    for _ in range(3):
        yield ScriptedReport(1.0, float(form.sequence_id))
    yield Final(1.0, float(form.sequence_id))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, MINIMIZED),
        ({"objective": {"direction": "minimize"}}, MINIMIZED),
        ({"objective": {"direction": "maximize"}}, MAXIMIZED),
        ({"tuner": {"name": "Random"}}, MAXIMIZED),
        ({"tuner": {"name": "Random", "classArgs": {"optimize_mode": "minimize"}}}, MINIMIZED),
    ],
)
@played(play, script=ever_greater)
async def test_tuner_assessor_and_what_is_shown_have_one_direction(
    scene: Scene, manager: Manager, /, changes: dict[str, Any], expected: tuple[str, list[TrialStatus], float]
) -> None:
    config = {"objective": None, "tuner": {"name": "TPE"}, "assessor": {"name": "Medianstop"}, "maxTrialNumber": 3}
    await scene.create(**config | changes)
    direction = objective(await scene.until_ended()).direction
    best = await manager.control.read(lambda c: trials.best(c, "exp", direction == "maximize"))
    assert (direction, await scene.statuses(), best and best.final_value) == expected
