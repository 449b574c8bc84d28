"""A trial that is preempted gives up its GPU and continues, whenever the manager dies: nothing is lost, and nothing is
stopped twice."""

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Kind, find
from fakes.nvidia import FakeGpus, find_compiler, gpu

from proctor.trial_keeper.settings import default_lock_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library"),
]

SAVING_TRIAL = Path(__file__).with_name("saving_trial.py")
HIGH = "high"


def config(command: str, **changes: Any) -> dict[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [1]}},
        "trialCommand": command,
        "trialConcurrency": 1,
        "maxTrialNumber": 1,
        "trialGpuNumber": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }


def trial(built: House, experiment_id: str) -> dict[str, Any] | None:
    found = built.ask(lambda client: list(client.trials(experiment_id)))
    return found[0] if found else None


def wait_for_status(built: House, experiment_id: str, *statuses: str) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        row = trial(built, experiment_id)
        return row if row is not None and row["status"] in statuses else None

    return built.wait_for(reached, f"the trial of {experiment_id} to be {' or '.join(statuses)}")


@pytest.mark.parametrize(
    "place",
    [
        "",
        "manager.cancel.before",
        "manager.cancel.after",
        "keeper.stop.save.after",
        "keeper.exit.ack.after",
    ],
)
def test_a_preempted_trial_continues_from_what_it_has_saved(place: str, tmp_path: Path) -> None:
    ours = uuid.uuid4().hex
    (tmp_path / "nvml").mkdir()
    gpus = FakeGpus(tmp_path / "nvml")
    gpus.set([gpu(f"GPU-{ours}")])
    dying = {"PROCTOR_FAILPOINT": place, "PROCTOR_FAILPOINT_COUNTER": str(tmp_path / "counter")} if place else {}
    command = f"{sys.executable} -S {SAVING_TRIAL}"
    try:
        with house(tmp_path, {**gpus.environment, **dying}) as built:
            low = f"{command} {tmp_path / 'ledger'} {tmp_path / 'finish'}"
            built.create(config(low, preemptible=True, saveSeconds=30))
            wait_for_status(built, EXPERIMENT_ID, "RUNNING")
            high = f"{command} {tmp_path / 'ledger-of-high'} {tmp_path / 'finish-high'}"
            built.create(config(high, priority=5), HIGH)
            wait_for_status(built, HIGH, "RUNNING")
            waiting = wait_for_status(built, EXPERIMENT_ID, "WAITING")
            assert "experiment high" in waiting["reason"]
            saved = (tmp_path / "ledger").read_text().split()
            assert saved[:3] == ["begin", "0", "saved"]
            for name in ("finish", "finish-high"):
                (tmp_path / name).touch()
            wait_for_status(built, HIGH, "SUCCEEDED")
            built.wait_until_done()
            assert find(Kind.TRIAL, built.home, built.tag) == []
            built.shut_down()
    finally:
        for lock in Path(default_lock_folder()).glob(f"*{ours}.*"):
            lock.unlink()
    assert (tmp_path / "counter").exists() == bool(place), f"{place} was never reached"
    assert (tmp_path / "ledger").read_text().split() == [*saved, "begin", saved[3]]
    ending = audit.Ending.read(built.home, tmp_path / "ledgers")
    ends = [job["end_reason"] for job in ending.jobs.values() if job["experiment_id"] == EXPERIMENT_ID]
    assert ends == ["PREEMPTED", "EXITED_OK"]
