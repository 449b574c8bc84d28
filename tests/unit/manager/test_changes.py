"""A reader that applies the changes of an experiment has what the store has, while trials report, end and run again."""

import asyncio
import sqlite3
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from proctor.manager.engine.manager import Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import metrics, trials
from proctor.manager.store.trial_table import changes, table
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step

CONFIG = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "true",
    "trialConcurrency": 3,
    "maxTrialNumber": 8,
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "local"},
}


def first_attempts_are_lost(form: TrialJobForm) -> Iterator[Step]:
    """The first job of each second trial reports three times and is lost; all others report ten times and end."""
    number = form.job_id.rpartition(".")[2]
    for step in range(10):
        yield ScriptedReport(1.0, float(number) + step / 100, step=10 * step)
        if number == "1" and step == 2 and form.sequence_id % 2:
            yield ScriptedExit(reason=EndReason.NODE_LOST, code=None)
            return
    yield Final(0.5, 1.0)


class Reader:
    """What a page knows of an experiment: rows of trials and curves, kept up to date by changes."""

    def __init__(self, manager: Manager, experiment_id: str) -> None:
        self.rows: dict[int, list[Any]] = {}
        self.curves: dict[str, list[tuple[int, float | None]]] = {}
        self.checks = 0
        self._manager = manager
        self._id = experiment_id
        self._revision = 0

    async def update(self) -> None:
        """Ask for what is new, and apply it."""
        found = await self._manager.control.read(lambda c: changes.since(c, self._id, self._revision))
        assert not found.missed
        self._revision = found.revision
        points: list[changes.NewPoints] = []
        if found.metrics:
            database = await self._manager.metrics(self._id)
            points = await database.read(lambda c: changes.new_points(c, found.metrics, member=0) or [])
        for new in points:
            self.curves.setdefault(new.trial_id, [])[new.first :] = zip(new.steps, new.values, strict=True)
        trial_ids = found.trial_ids | {new.trial_id for new in points}
        changed = await self._manager.control.read(lambda c: self._table(c, trial_ids))
        self.rows |= self.by_number(changed)

    def _table(self, connection: sqlite3.Connection, trial_ids: frozenset[str] | None) -> table.TrialTable:
        return table.read(connection, self._id, now=0.0, trial_ids=trial_ids, limit=100)

    @staticmethod
    def by_number(found: table.TrialTable) -> dict[int, list[Any]]:
        """The rows by the numbers of their trials."""
        named = {column.name: column.values for column in found.columns}
        return {
            number: [named[name][place] for name in ("id", "status", "reason", "value", "latest", "reports", "node")]
            for place, number in enumerate(named["no"])
        }

    async def check_rows(self) -> None:
        """Compare with the rows that are stored, unless more has happened meanwhile."""
        stored = await self._manager.control.read(lambda c: self._table(c, None))
        if stored.revision == self._revision:
            assert self.rows == self.by_number(stored)
            self.checks += 1

    async def check_curves(self) -> int:
        """Compare with the curves that are stored, once nothing happens any more; returns how many jobs there were."""
        rows = (await self._manager.control.read(lambda c: trials.page(c, self._id))).items
        database = await self._manager.metrics(self._id)
        for row in rows:
            curve = await database.read(lambda c, trial_id=row.id: metrics.curve(c, trial_id))  # type: ignore[misc]
            assert self.curves[row.id] == [(point.step, point.value) for point in curve]
        return sum(row.jobs for row in rows)


def test_rows_and_curves_are_those_of_the_store_while_trials_run(tmp_path: Path) -> None:
    def main(loop: VirtualTimeLoop) -> Coroutine[Any, Any, None]:
        async def run() -> None:
            simulation = Simulation(Home(tmp_path / "home"), loop, script=first_attempts_are_lost)
            async with simulation.manager() as manager:
                created = await manager.create_experiment(config=CONFIG, directory=str(tmp_path))
                reader = Reader(manager, created.id)
                while not (await manager.experiment(created.id)).status.has_ended:
                    await asyncio.sleep(0.7)
                    await reader.update()
                    await reader.check_rows()
                await reader.update()
                await reader.check_rows()
                assert await reader.check_curves() > 8
                assert reader.checks > 20

        return run()

    run_virtual(main)
