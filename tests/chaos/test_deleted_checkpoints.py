"""Checkpoints that are no longer kept are deleted, whichever process dies while it is being done, and no others."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from chaos import audit, places
from chaos.harness import House, house
from chaos.places import listed

pytestmark = pytest.mark.slow

STEPS = 5
VALUES = (0.1, 0.9, 0.3, 0.2, 0.4)
KEPT = {"2", "4", "5"}  # the best one and the newest two
TRIAL = f"""
import os, tempfile, time, proctor
proctor.get_next_parameter()
found = proctor.get_checkpoint()
step = int(open(found + "/step").read()) if found else 0
for value in {VALUES}[step:]:
    step += 1
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/step", "w") as file:
            file.write(str(step))
        proctor.report(value, checkpoint=folder, step=step)
    time.sleep(0.2)
proctor.report_final_result(step)
"""


def create(built: House, script: Path) -> None:
    script.write_text(TRIAL)
    built.create(
        {
            "searchSpace": {"x": {"_type": "choice", "_value": [1]}},
            "trialCommand": f"{sys.executable} -S {script}",
            "trialConcurrency": 1,
            "maxTrialNumber": 1,
            "objective": {"direction": "maximize"},
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local"},
        }
    )


def rows(built: House, condition: str = "1") -> list[tuple[str]]:
    """The paths of registered checkpoints."""
    (database,) = (built.home / "experiments").glob("*/metrics.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT path FROM checkpoints WHERE {condition}").fetchall()


@pytest.mark.parametrize("place", ["", *listed(places.OF_DELETED_CHECKPOINTS)])
def test_what_is_not_kept_is_deleted_and_nothing_else(place: str, tmp_path: Path) -> None:
    dying = {"PROCTOR_FAILPOINT": place, "PROCTOR_FAILPOINT_COUNTER": str(tmp_path / "counter")}
    with house(tmp_path, dying if place else {}) as built:
        create(built, tmp_path / "trial.py")
        built.wait_until_done()

        def all_removed() -> bool | None:
            built.ask(lambda client: client.health())
            return None if rows(built, "deleted_at IS NOT NULL AND removed_at IS NULL") else True

        built.wait_for(all_removed, "the deletions")
        kept = [Path(path).name for (path,) in rows(built, "deleted_at IS NULL")]
        assert len(rows(built)) == STEPS
        built.shut_down()
    assert (tmp_path / "counter").exists() == bool(place), f"{place} was never reached"
    assert set(kept) == KEPT
    (folder,) = tmp_path.glob("**/jobs/1/output/checkpoints")
    assert {path.name for path in folder.iterdir()} == KEPT
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["EXITED_OK"]
    audit.check_nothing_left(ending)
