"""Which jobs of keepers are stopped as unknown: those that the control database explains, no others."""

from functools import partial

from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.store import database_identity
from proctor.manager.store.tables import jobs
from proctor.training_services.in_memory.scripts import Final
from proctor.trial_keeper.protocol import JobReport, Registration


class KeeperScene(Scene):
    """A keeper of this machine registers with the manager."""

    config = SMALL | {"maxTrialNumber": 1}

    async def run_once(self) -> str:
        """Run the experiment and stop it; the id of its job."""
        await self.create()
        await self.until_ended()
        await self._manager.stop_experiment("exp")
        await self.until_ended()
        (job,) = await self.jobs()
        return job.id

    async def unknown(self, *found: JobReport) -> list[str]:
        """Which of its jobs a keeper must stop."""
        registration = Registration("k", 1, "boot", "host", "0", "3.11", [], list(found))
        return (await self._manager.hub.register("local", registration)).unknown

    async def start(self) -> Manager:
        manager = await super().start()
        manager.pool.add("local", "local")
        manager.hub.add_node("local", "secret")
        self._running.callback(manager.hub.close)
        return manager


play = partial(small_experiments.play, kind=KeeperScene)


def job(job_id: str, experiment_id: str = "exp", *, started_at: float) -> JobReport:
    return JobReport(job_id, "token", 7, started_at, experiment_id=experiment_id)


@played(play)
async def test_a_job_whose_end_is_stored_or_whose_experiment_was_deleted_is_stopped(
    scene: KeeperScene, manager: Manager, /
) -> None:
    now = scene.clock.now
    ended = await scene.run_once()
    assert await scene.unknown(job(ended, started_at=now())) == [ended]
    assert await scene.unknown(job("other.1", started_at=now())) == [], "it was never written down"
    await manager.delete_experiment("exp")
    assert await scene.unknown(job(ended, started_at=now())) == [ended]
    before = now()
    await scene.run_once()
    old, new = job("old.1", started_at=before - 1.0), job("new.1", started_at=now())
    assert await scene.unknown(old, new) == ["old.1"]


@played(play)
async def test_a_job_that_the_database_has_no_word_of_goes_on_until_a_person_accepts_the_database(
    scene: KeeperScene, manager: Manager, /
) -> None:
    now = scene.clock.now()
    lost, later = job("lost.1", "gone", started_at=now - 1.0), job("later.1", "gone", started_at=now + 1.0)
    assert await scene.unknown(lost, later) == []
    assert "2 trial jobs are missing from the control database (lost.1 on node local, " in manager.problem
    assert "--accept-database" in manager.problem
    await manager.control.write(lambda c: database_identity.accept(c, now))
    assert await scene.unknown(lost, later) == ["lost.1"]
    assert "1 trial job is missing" in manager.problem
    assert await scene.unknown() == []
    assert manager.problem == ""


@played(small_experiments.play, script=plays(Final(30.0, 1.0)))
async def test_jobs_of_a_service_that_places_by_itself_are_not_expected_of_keepers(
    scene: Scene, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=1, seconds=10.0)
    manager = await scene.restart()
    (job,) = await scene.jobs()
    assert (job.placement, job.keeper_node) == (None, None)
    await scene.until_ended()
    assert await manager.control.read(lambda c: jobs.live(c, "exp")) == []
    assert manager.hub.abandon("exp") == [], "it would never have been removed"
