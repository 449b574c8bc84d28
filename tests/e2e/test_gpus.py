"""GPUs from NVML to the trial's CUDA_VISIBLE_DEVICES, through a real manager and keeper, on GPUs that do not exist."""

import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.nvidia import FakeGpus, find_compiler, gpu
from fakes.real_manager import RealManager, real_manager

from proctor.trial_keeper.settings import default_lock_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library"),
]

TRIAL = """\
import json, os, sys, time
import proctor

parameters = proctor.get_next_parameter()
folder = {folder!r}
ours = os.path.join(folder, os.environ["PROCTOR_TRIAL_ID"])
with open(ours + ".new", "w") as file:
    json.dump({{"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}}, file)
os.rename(ours + ".new", ours)
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.02)
proctor.report_final_result(1.0)
"""

LOOKS_OFTEN = """\
import runpy, sys
from proctor.training_services.keepers.hub import KeeperHub
from proctor.trial_keeper.start import start_keeper

KeeperHub.__init__.__kwdefaults__.update(heartbeat_seconds=0.25, silent_after=60)
start_keeper.__kwdefaults__["device_refresh_seconds"] = 0.25
del sys.argv[: sys.argv.index("proctor.manager")]
runpy.run_module("proctor.manager", run_name="__main__", alter_sys=True)
"""
"""Runs the manager's command; its keeper looks at the GPUs, and reports, every quarter of a second."""


class Machine:
    """A manager on a machine with two fake GPUs, and trials that hold theirs until they are let go."""

    def __init__(self, manager: RealManager, gpus: FakeGpus, uuids: tuple[str, str], folder: Path) -> None:
        self.manager, self.gpus, self.uuids, self.folder = manager, gpus, uuids, folder
        self._created: list[str] = []

    def create(self, **config: Any) -> str:
        """An experiment whose trials write down their GPUs and wait for `release_trials`."""
        script = TRIAL.format(folder=str(self.folder))
        self._created.append(self.manager.create(script, **{"trialConcurrency": 4, "maxTrialNumber": 4, **config}))
        return self._created[-1]

    def release_trials(self) -> None:
        """Trials end, now and from now on."""
        (self.folder / "go").touch()

    def clear(self) -> None:
        """End all experiments, whatever became of the test, and wait until the GPUs are free."""
        self.release_trials()
        for experiment in self._created:
            if self.manager.client.experiment(experiment)["status"] not in ("DONE", "ERROR"):
                self.manager.client.stop_experiment(experiment)
            self.manager.until_status(experiment, "DONE", "ERROR", "STOPPED")
        self.gpus.set([gpu(name) for name in self.uuids])
        self.manager.poll_for(
            lambda: [device["held_by"] + device["leases"] for device in devices(self.manager)] == [[], []], "free GPUs"
        )

    def given(self, trial: dict[str, Any]) -> str | None:
        """The trial's CUDA_VISIBLE_DEVICES, once it has said it."""
        reported = self.folder / str(trial["id"])
        path = self.manager.poll_for(lambda: reported if reported.exists() else None, f"trial {trial['id']}")
        found: str | None = json.loads(path.read_text())["gpus"]
        return found

    def settled(self, experiment_id: str, *, running: int, waiting: int) -> tuple[list[Any], list[Any]]:
        """Its running and waiting trials, once there are so many and every waiting one says what it waits for."""

        def read_state() -> tuple[list[Any], list[Any]] | None:
            rows = self.manager.trials(experiment_id)
            runs = [row for row in rows if row["status"] == "RUNNING"]
            waits = [row for row in rows if row["status"] == "WAITING" and "GPU" in row["reason"]]
            return (runs, waits) if (len(runs), len(waits)) == (running, waiting) else None

        return self.manager.until(read_state, f"{running} running and {waiting} waiting trials")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A manager for all tests of this module."""
    ours = uuid.uuid4().hex
    uuids = (f"GPU-a-{ours}", f"GPU-b-{ours}")
    gpus = FakeGpus(tmp_path_factory.mktemp("nvml"))
    gpus.set([gpu(name) for name in uuids])
    folder = tmp_path_factory.mktemp("machine")
    with started(folder, gpus) as manager:
        yield Machine(manager, gpus, uuids, folder)
    for lock in Path(default_lock_folder()).glob(f"*{ours}.*"):
        lock.unlink()


@contextmanager
def started(folder: Path, gpus: FakeGpus) -> Iterator[RealManager]:
    """A manager that knows the machine's GPUs."""
    wrapper = [sys.executable, "-P", "-c", LOOKS_OFTEN]
    with real_manager(folder / "work", environment=gpus.environment, wrapper=wrapper) as manager:
        manager.until(lambda: devices(manager), "the node's GPUs")
        yield manager


@pytest.fixture
def machine(shared: Machine, tmp_path: Path) -> Iterator[Machine]:
    """The machine with two free GPUs."""
    made = Machine(shared.manager, shared.gpus, shared.uuids, tmp_path)
    yield made
    made.clear()


def devices(manager: RealManager) -> list[dict[str, Any]]:
    """The GPUs as REST shows them."""
    [node] = manager.client.nodes()
    return list(node["facts"]["devices"] or [])


def test_trials_run_on_different_gpus_and_the_others_say_who_holds_them(machine: Machine) -> None:
    manager = machine.manager
    experiment = machine.create(trialGpuNumber=1)
    running, waiting = machine.settled(experiment, running=2, waiting=2)
    assert {machine.given(trial) for trial in running} == set(machine.uuids)
    holders = [f"trial {trial['sequence_id']} of experiment {experiment}" for trial in running]
    for trial in waiting:
        assert trial["reason"].startswith("waiting: needs 1 GPU, node local has 0 free (")
        for index, holder in enumerate(holders):
            assert f"held by {holder}" in trial["reason"]
            assert f"GPU {index} held by" in trial["reason"]
    assert sorted(holder for device in devices(manager) for holder in device["held_by"]) == holders
    printed = manager.command_line("nodes")
    for holder in holders:
        assert holder in printed
    machine.release_trials()
    assert manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 4}
    assert {machine.given(trial) for trial in manager.trials(experiment)} == set(machine.uuids)
    assert [device["held_by"] for device in devices(manager)] == [[], []]


def test_a_gpu_that_others_use_is_left_alone_unless_that_is_allowed_until_they_have_left_it(machine: Machine) -> None:
    manager, (free, used) = machine.manager, machine.uuids
    machine.gpus.set([gpu(free), gpu(used, processes={os.getpid(): 300})])
    phrase = f"another process (pid {os.getpid()}, 300 MiB)"
    manager.poll_for(lambda: [phrase] in [device["held_by"] for device in devices(manager)], "the foreign process")
    assert phrase in manager.command_line("nodes")
    experiment = machine.create(trialGpuNumber=1)
    [first], waiting = machine.settled(experiment, running=1, waiting=3)
    assert machine.given(first) == free
    assert f"GPU 1 in use by another process (pid {os.getpid()}), useActiveGpu is false" in waiting[0]["reason"]
    bold = machine.create(
        trialGpuNumber=1, maxTrialNumber=1, trainingService={"platform": "local", "useActiveGpu": True}
    )
    [running], _ = machine.settled(bold, running=1, waiting=0)
    assert machine.given(running) == used
    manager.client.kill_trial(running["id"])
    machine.gpus.set([gpu(free), gpu(used)])
    running, _ = machine.settled(experiment, running=2, waiting=2)
    assert {machine.given(trial) for trial in running} == set(machine.uuids)
    machine.release_trials()
    assert manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 4}


@pytest.fixture(scope="module")
def neighbors_manager(shared: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """Another manager on the same machine, with the same GPUs."""
    with started(tmp_path_factory.mktemp("neighbor"), shared.gpus) as manager:
        yield manager


@pytest.fixture
def neighbor(machine: Machine, neighbors_manager: RealManager, tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "neighbor").mkdir()
    made = Machine(neighbors_manager, machine.gpus, machine.uuids, tmp_path / "neighbor")
    yield made
    machine.release_trials()
    made.clear()


@pytest.mark.thorough
def test_two_managers_that_race_for_the_same_gpus_run_all_their_trials(machine: Machine, neighbor: Machine) -> None:
    """The manager that loses the race for a GPU tries again, and no retry is charged."""
    machine.release_trials()
    neighbor.release_trials()
    both = [(each, each.create(trialGpuNumber=2, maxTrialNumber=6)) for each in (machine, neighbor)]
    for each, experiment in both:
        assert each.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 6}
        for trial in each.manager.trials(experiment):
            reasons = [job["end_reason"] for job in each.manager.client.jobs(trial["id"])]
            assert sorted(set(reasons) - {"PREEMPTED"}) == ["EXITED_OK"]


def test_trials_without_gpus_see_none_and_trials_unmanaged_see_all(machine: Machine) -> None:
    none = machine.create(trialGpuNumber=0)
    unmanaged = machine.create()
    machine.release_trials()
    for experiment, expected in ((none, ""), (unmanaged, os.environ.get("CUDA_VISIBLE_DEVICES"))):
        machine.manager.until_status(experiment, "DONE")
        assert {machine.given(trial) for trial in machine.manager.trials(experiment)} == {expected}
