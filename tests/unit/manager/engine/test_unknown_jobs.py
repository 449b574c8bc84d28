"""Which jobs of keepers are stopped as unknown: those that the control database explains, no others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from fakes.small_experiments import SMALL, played

from proctor.manager.engine.manager import Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store import database_identity
from proctor.manager.store.tables import jobs
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step
from proctor.trial_keeper.protocol import JobReport, Registration

CONFIG = SMALL | {"maxTrialNumber": 1}


def play(tmp_path: Path, act: Callable[[Simulation, Manager], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop)
        async with simulation.manager() as manager:
            manager.pool.add("local", "local")
            manager.hub.add_node("local", "secret")
            await act(simulation, manager)
            manager.hub.close()

    run_virtual(main)


async def run_once(simulation: Simulation, manager: Manager, experiment_id: str) -> str:
    """Run an experiment and stop it; the id of its job."""
    await manager.create_experiment(config=CONFIG, directory=str(simulation.home.path), experiment_id=experiment_id)
    await simulation.ended(manager, experiment_id)
    await manager.stop_experiment(experiment_id)
    await simulation.ended(manager, experiment_id)
    (job,) = await manager.control.read(
        lambda c: [jobs.get(c, row[0]) for row in c.execute("SELECT id FROM trial_jobs")]
    )
    return job.id


async def unknown(manager: Manager, *found: JobReport) -> list[str]:
    """Which of its jobs a keeper must stop."""
    answer = await manager.hub.register("local", Registration("k", 1, "boot", "host", "0", "3.11", [], list(found)))
    return answer.unknown


def job(job_id: str, experiment_id: str, *, started_at: float) -> JobReport:
    return JobReport(job_id, "token", 7, started_at, experiment_id=experiment_id)


@played(play)
async def test_a_job_whose_end_is_stored_or_whose_experiment_was_deleted_is_stopped(
    simulation: Simulation, manager: Manager, /
) -> None:
    now = simulation.clock.now
    ended = await run_once(simulation, manager, "digits")
    assert await unknown(manager, job(ended, "digits", started_at=now())) == [ended]
    assert await unknown(manager, job("other.1", "digits", started_at=now())) == [], "it was never written down"
    await manager.delete_experiment("digits")
    assert await unknown(manager, job(ended, "digits", started_at=now())) == [ended]
    before = now()
    await run_once(simulation, manager, "digits")
    old, new = job("old.1", "digits", started_at=before - 1.0), job("new.1", "digits", started_at=now())
    assert await unknown(manager, old, new) == ["old.1"]


@played(play)
async def test_a_job_that_the_database_has_no_word_of_goes_on_until_a_person_accepts_the_database(
    simulation: Simulation, manager: Manager, /
) -> None:
    now = simulation.clock.now()
    lost, later = job("lost.1", "gone", started_at=now - 1.0), job("later.1", "gone", started_at=now + 1.0)
    assert await unknown(manager, lost, later) == []
    assert "2 trial jobs are missing from the control database (lost.1 on node local, " in manager.problem
    assert "--accept-database" in manager.problem
    await manager.control.write(lambda c: database_identity.accept(c, now))
    assert await unknown(manager, lost, later) == ["lost.1"]
    assert "1 trial job is missing" in manager.problem
    assert await unknown(manager) == []
    assert manager.problem == ""


def test_jobs_of_a_service_that_places_by_itself_are_not_expected_of_keepers(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(30.0, 1.0)

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            await manager.create_experiment(config=CONFIG, directory=str(tmp_path), experiment_id="digits")
            await asyncio.sleep(10.0)
        async with simulation.manager() as manager:
            (job,) = await manager.control.read(lambda c: jobs.live(c, "digits"))
            assert (job.placement, job.keeper_node) == (None, None)
            await simulation.ended(manager, "digits")
            assert await manager.control.read(lambda c: jobs.live(c, "digits")) == []
            assert manager.hub.abandon("digits") == [], "it would never have been removed"

    run_virtual(main)
