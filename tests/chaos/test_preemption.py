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
    pytest.mark.thorough,
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library"),
]

SAVING_TRIAL = Path(__file__).with_name("saving_trial.py")
PLACES = ["", "manager.cancel.before", "manager.cancel.after", "keeper.stop.save.after", "keeper.exit.ack.after"]
"""One for each preemption: where a process dies meanwhile."""


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


def test_a_preempted_trial_continues_from_what_it_has_saved(tmp_path: Path) -> None:
    ours = uuid.uuid4().hex
    (tmp_path / "nvml").mkdir()
    gpus = FakeGpus(tmp_path / "nvml")
    gpus.set([gpu(f"GPU-{ours}")])
    command = f"{sys.executable} -S {SAVING_TRIAL}"
    try:
        with house(tmp_path, gpus.environment) as built:
            low = f"{command} {tmp_path / 'ledger'} {tmp_path / 'finish'}"
            built.create(config(low, preemptible=True, saveSeconds=30))
            for number, place in enumerate(PLACES, start=1):
                wait_for_status(built, EXPERIMENT_ID, "RUNNING")
                built.wait_until_it_asks(number)
                if place:
                    built.places.arm(place)
                preempt(built, f"high-{number}", f"{command} {tmp_path / f'high-{number}'} {tmp_path / 'finish-high'}")
                assert built.places.left() == []
            wait_for_status(built, EXPERIMENT_ID, "RUNNING")
            (tmp_path / "finish").touch()
            built.wait_until_done()
            assert find(Kind.TRIAL, built.home, built.tag) == []
            built.shut_down()
    finally:
        for lock in Path(default_lock_folder()).glob(f"*{ours}.*"):
            lock.unlink()
    words = (tmp_path / "ledger").read_text().split()
    assert words[::2] == ["begin", "saved"] * len(PLACES) + ["begin"]
    assert (words[1], words[3::4]) == ("0", words[5::4]), "each begins with what the one before has saved"
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["PREEMPTED"] * len(PLACES) + ["EXITED_OK"]


def preempt(built: House, experiment_id: str, command: str) -> None:
    """Run the trial of an experiment that is more important to its end."""
    finish = Path(command.split()[-1])
    finish.unlink(missing_ok=True)
    built.create(config(command, priority=5), experiment_id)
    wait_for_status(built, experiment_id, "RUNNING")
    waiting = wait_for_status(built, EXPERIMENT_ID, "WAITING")
    assert f"experiment {experiment_id}" in waiting["reason"]
    finish.touch()
    wait_for_status(built, experiment_id, "SUCCEEDED")
    built.stop_experiment(experiment_id)
