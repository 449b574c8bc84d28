"""The experiment's direction reaches the algorithms: a simulation with a built-in tuner and assessor."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.api.resources import objective
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import experiments, trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step

SUCCEEDED, STOPPED = TrialStatus.SUCCEEDED, TrialStatus.EARLY_STOPPED


def ever_greater(form: TrialJobForm) -> Iterable[Step]:
    """Each trial reports greater values than those before it."""
    for _ in range(3):
        yield ScriptedReport(1.0, float(form.sequence_id))
    yield Final(1.0, float(form.sequence_id))


def run(home: Path, **changes: Any) -> tuple[str, list[TrialStatus], float]:
    """What an experiment of three trials shows: its direction, how the trials ended, the best value."""
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "true",
        "trialConcurrency": 1,
        "maxTrialNumber": 3,
        "tuner": {"name": "TPE"},
        "assessor": {"name": "Medianstop"},
        "trainingService": {"platform": "local"},
    }
    shown: list[tuple[str, list[TrialStatus], float]] = []

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(home), loop, script=ever_greater)
        async with simulation.manager() as manager:
            row = await manager.create_experiment(config={**config, **changes}, directory=str(home.parent))
            await simulation.ended(manager, row.id)
            shown.append(await read_state(manager, row.id))

    run_virtual(main)
    return shown[0]


async def read_state(manager: Manager, experiment_id: str) -> tuple[str, list[TrialStatus], float]:
    row = await manager.control.read(lambda c: experiments.get(c, experiment_id))
    page = await manager.control.read(lambda c: trials.page(c, experiment_id))
    direction = objective(row).direction
    best = await manager.control.read(lambda c: trials.best(c, experiment_id, direction == "maximize"))
    assert best is not None
    assert best.final_value is not None
    return direction, [trial.status for trial in page.items], best.final_value


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("minimize", [SUCCEEDED, STOPPED, STOPPED], 0.0)),
        ({"objective": {"direction": "minimize"}}, ("minimize", [SUCCEEDED, STOPPED, STOPPED], 0.0)),
        ({"objective": {"direction": "maximize"}}, ("maximize", [SUCCEEDED, SUCCEEDED, SUCCEEDED], 2.0)),
        ({"tuner": {"name": "Random"}}, ("maximize", [SUCCEEDED, SUCCEEDED, SUCCEEDED], 2.0)),
        (
            {"tuner": {"name": "Random", "classArgs": {"optimize_mode": "minimize"}}},
            ("minimize", [SUCCEEDED, STOPPED, STOPPED], 0.0),
        ),
    ],
)
def test_tuner_assessor_and_what_is_shown_have_one_direction(
    tmp_path: Path, changes: dict[str, Any], expected: tuple[str, list[TrialStatus], float]
) -> None:
    assert run(tmp_path / "home", **changes) == expected
