"""Checkpoints that are no longer kept are deleted, whichever process dies while it is being done, and no others."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.places import listed

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

STEPS = 5
VALUES = (0.1, 0.9, 0.3, 0.2, 0.4)
KEPT = {"2", "4", "5"}  # the best one and the newest two
TRIAL = f"""
import os, sys, tempfile, time, proctor
proctor.get_next_parameter()
while not os.path.exists(sys.argv[1] + "/go-" + os.environ["PROCTOR_SEQUENCE_ID"]):
    time.sleep(0.02)
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


PLACES = ["", *listed(places.OF_DELETED_CHECKPOINTS)]
"""One for each trial: where a process dies while the trial's checkpoints are deleted."""


def rows(built: House, condition: str = "1") -> list[tuple[str, str]]:
    """Trials and paths of registered checkpoints."""
    (database,) = (built.home / "experiments").glob("*/metrics.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT trial_id, path FROM checkpoints WHERE {condition}").fetchall()


def test_what_is_not_kept_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "trial.py"
    script.write_text(TRIAL)
    with house(tmp_path) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": f"{sys.executable} -S {script} {tmp_path}",
                "trialConcurrency": 1,
                "maxTrialNumber": len(PLACES),
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )
        for number, place in enumerate(PLACES):
            if place:
                built.places.arm(place)
            (tmp_path / f"go-{number}").touch()

            def is_over(trials: int = number + 1) -> bool | None:
                ended = built.ask(lambda client: client.experiment(EXPERIMENT_ID)["trial_counts"]).get("SUCCEEDED")
                return (ended == trials and not rows(built, "deleted_at IS NOT NULL AND removed_at IS NULL")) or None

            built.wait_for(is_over, "the deletions")
            assert built.places.left() == []
        built.wait_until_done()
        kept = [Path(path).name for _, path in rows(built, "deleted_at IS NULL ORDER BY trial_id, path")]
        assert len(rows(built)) == STEPS * len(PLACES)
        built.shut_down()
    assert kept == sorted(KEPT) * len(PLACES)
    folders = list(tmp_path.glob("**/jobs/1/output/checkpoints"))
    assert [{path.name for path in folder.iterdir()} for folder in folders] == [KEPT] * len(PLACES)
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["EXITED_OK"] * len(PLACES)
    audit.check_nothing_left(ending)
