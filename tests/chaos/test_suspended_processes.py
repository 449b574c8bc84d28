"""Keeper, spawner or reaper are suspended (SIGSTOP): nothing is lost, and everything that is shown says why nothing
moves, and what to do."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Found, Kind, find

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SCRIPT = """\
import os, sys, time
from pathlib import Path
import proctor
folder, number = Path(sys.argv[1]), os.environ["PROCTOR_SEQUENCE_ID"]
(folder / f"began-{number}").touch()
while not (folder / f"go-{number}").exists():
    time.sleep(0.02)
proctor.report_final_result(float(number))
"""


@contextmanager
def suspended(process: Found) -> Iterator[str]:
    """A process is stopped (SIGSTOP); what the user can read about it."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield f"kill -CONT {process.pid}"
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


class Scene:
    """Three trials of one experiment, one after another, each of which ends on request."""

    def __init__(self, built: House, folder: Path) -> None:
        self.built = built
        self.folder = folder
        script = folder / "trial.py"
        script.write_text(SCRIPT)
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": f"{sys.executable} -S {script} {folder}",
                "trialConcurrency": 1,
                "maxTrialNumber": 3,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )

    def go(self, number: int) -> None:
        """Let a trial end."""
        (self.folder / f"go-{number}").touch()

    def until_began(self, number: int) -> None:
        self.built.wait_for(
            lambda: True if (self.folder / f"began-{number}").exists() else None, f"trial {number} to begin"
        )

    def process(self, kind: Kind) -> Found:
        """The one living process of this kind."""
        (found,) = find(kind, self.built.home, self.built.tag)
        return found

    def trial(self, number: int) -> dict[str, Any]:
        rows = self.built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
        return next((row for row in rows if row["sequence_id"] == number), {"status": "", "reason": ""})

    def until(self, what: str, shown: Callable[[], bool]) -> None:
        self.built.wait_for(lambda: True if shown() else None, what)

    def until_printed(self, advice: str) -> None:
        """Until experiment, node and health all name the process and say what to do."""

        def reasons() -> list[str]:
            ask = self.built.ask
            return [
                ask(lambda client: client.experiment(EXPERIMENT_ID)["reason"]),
                ask(lambda client: client.node("local")["reason"]),
                ask(lambda client: client.health()["reason"]),
            ]

        self.until(f"{advice!r} in {reasons()}", lambda: all(advice in reason for reason in reasons()))
        assert self.built.ask(lambda client: client.health()["status"]) == "degraded"

    def until_well(self) -> None:
        """Until nothing of that is said any more."""

        def well() -> bool:
            ask = self.built.ask
            health = ask(lambda client: client.health())
            return (health["status"], ask(lambda client: client.node("local")["reason"])) == ("ok", "")

        self.until("the manager to be well", well)


def test_suspended_processes_are_named_wherever_something_waits_for_them(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        scene = Scene(built, tmp_path)
        scene.until_began(0)
        with suspended(scene.process(Kind.REAPER)) as advice:
            scene.go(0)
            scene.until("the trial's reason", lambda: "its reaper" in scene.trial(0)["reason"])
            assert advice in scene.trial(0)["reason"]
            assert scene.trial(0)["status"] == "RUNNING"
            scene.until_printed(advice)
        scene.until_began(1)
        assert (scene.trial(0)["status"], scene.trial(0)["reason"]) == ("SUCCEEDED", "")
        scene.until_well()

        with suspended(scene.process(Kind.SPAWNER)) as advice:
            scene.until_printed(advice)
            scene.go(1)
            scene.until("the next trial's reason", lambda: advice in scene.trial(2)["reason"])
            assert scene.trial(2)["status"] == "WAITING"
        scene.until_began(2)
        scene.until_well()

        with suspended(scene.process(Kind.KEEPER)) as advice:
            scene.go(2)
            scene.until_printed(advice)
            assert built.ask(lambda client: client.node("local")["status"]) == "SILENT"
            assert scene.trial(2)["reason"].startswith("no reports from it: node local is silent")
            assert advice in scene.trial(2)["reason"]
        built.wait_until_done()
        scene.until_well()
        assert [scene.trial(number)["jobs"] for number in range(3)] == [1, 1, 1]
        assert [scene.trial(number)["final_value"] for number in range(3)] == [0.0, 1.0, 2.0]
        built.shut_down()
