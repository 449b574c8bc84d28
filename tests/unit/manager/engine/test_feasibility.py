"""Which machines an experiment can use, in numbers and in words."""

from pathlib import Path

import pytest
from fakes.small_experiments import SMALL, Scene, play, played
from unit.manager.engine.loop.test_reservations import Machines, pool

from proctor.manager.engine.feasibility import Outlook
from proctor.manager.engine.loop.reservations import FreePlacer, PoolPlacer
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import BadRequest
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.base import TrainingService
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.registry import ServiceContext, create
from proctor.trial_keeper.protocol import Device

__all__ = ["pool"]


def outlook(pool: NodePool, *nodes: str, gpus: int | None = None) -> Outlook:
    return PoolPlacer(pool, Machines(nodes or ("one", "two")), gpus).outlook()


def test_machines_that_are_all_there_need_no_words(pool: NodePool) -> None:
    assert outlook(pool) == Outlook(2)
    assert outlook(pool, gpus=2).clause == ""
    assert FreePlacer().outlook() is None


def test_a_machine_that_cannot_be_used_is_named_with_its_reason(pool: NodePool) -> None:
    pool.set_status("one", NodeStatus.FAILED, "login as bob was refused")
    found = outlook(pool)
    assert found.unusable == {"one": "node one is failed: login as bob was refused"}
    assert found.clause == "1 of its 2 machines cannot be used now (node one is failed: login as bob was refused)"
    pool.set_status("two", NodeStatus.SILENT, "no word for 20 s")
    assert outlook(pool).clause.startswith("none of its 2 machines can be used now (node one is failed: ")
    assert outlook(pool, "two").clause == "its only machine cannot be used now (node two is silent: no word for 20 s)"
    assert outlook(pool).never == "", "they may come back"


def test_machines_that_are_being_connected_or_not_known_yet_are_pending(pool: NodePool) -> None:
    pool.add("three", "remote", reason="it is being connected")
    found = outlook(pool, "one", "three", "four")
    assert (found.pending, found.unusable, found.clause) == (("three", "four"), {}, "")


def test_what_no_machine_has_is_said_although_it_is_connected(pool: NodePool) -> None:
    pool.add("bare", "remote")
    pool.connect("bare", [], driver_note="no driver", hostname="bare", version="0", seen_at=1.0)
    assert outlook(pool, "bare").clause == ""
    never = outlook(pool, "bare", gpus=1)
    assert never.never == "needs 1 GPU, node bare has no GPU (no driver)"
    assert never.clause == f"no trial can ever run: {never.never}"
    some = outlook(pool, "bare", "one", gpus=1)
    assert (some.never, list(some.unusable)) == ("", ["bare"])
    away = outlook(pool, "bare", "unknown", gpus=1)
    assert (away.never, away.pending) == ("", ("unknown",))


def test_of_very_many_machines_the_first_are_named() -> None:
    pool = NodePool()
    names = [f"gpu-{number}" for number in range(8)]
    for name in names:
        pool.add(name, "remote")
        pool.set_status(name, NodeStatus.FAILED, "it is off")
    pool.connect(
        "gpu-7", [Device(0, "GPU-0", "Fake", 80_000, 0, 0)], driver_note="", hostname="", version="", seen_at=1
    )
    clause = outlook(pool, *names).clause
    assert clause.startswith("7 of its 8 machines cannot be used now (node gpu-0 is failed: it is off; node gpu-1")
    assert clause.endswith("node gpu-4 is failed: it is off; and 2 more)")


def test_a_machine_that_a_person_has_drained_cannot_be_used(pool: NodePool) -> None:
    pool.hold("one", "drained: a disk is replaced")
    assert "drained: a disk is replaced" in outlook(pool).unusable["one"]


class LocalScene(Scene):
    """Trials would run on this machine, had it a keeper."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        return create(platform, context)


@played(play, kind=LocalScene)
async def test_a_dry_run_and_an_experiment_say_what_no_machine_has(
    scene: LocalScene, manager: Manager, /, tmp_path: Path
) -> None:
    never = "needs 1 GPU, node local has no GPU"
    manager.pool.add("local", "local")
    manager.pool.connect("local", [], driver_note="", hostname="here", version="0", seen_at=1.0)
    with pytest.raises(BadRequest, match=f"no trial can ever run: {never}"):
        await manager.create_experiment(config=SMALL | {"trialGpuNumber": 1}, directory=str(tmp_path), dry_run=True)
    row = await scene.create(trialGpuNumber=1)
    assert manager.outlook(row) == Outlook(1, {"local": never}, never=never)
    row = await scene.until_ended()
    assert (row.status, row.reason) == (ExperimentStatus.ERROR, never)
    assert manager.outlook(row) is None
    assert await manager.create_experiment(config=SMALL, directory=str(tmp_path), dry_run=True)
