"""Two machines with four GPUs each, three experiments that want one, two and four: no GPU is ever given twice."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import Scene, read_records
from fakes.nvidia import find_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library"),
]

WANTED = {1: 12, 2: 8, 4: 5}
"""How many trials want so many GPUs each."""


def test_trials_of_experiments_at_once_never_share_a_gpu(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    uuids = {machine.name: machine.set_gpus(4) for machine in scene.machines}
    experiments = {
        scene.create(seconds=0.1, trialGpuNumber=number, trialConcurrency=8, maxTrialNumber=trials): number
        for number, trials in WANTED.items()
    }
    asked: dict[str, int] = {}
    for experiment, number in experiments.items():
        done = scene.manager.until_status(experiment, "DONE")
        assert done["trial_counts"] == {"SUCCEEDED": WANTED[number]}
        scene.expect_all_reports(experiment)
        asked |= {trial["id"]: number for trial in scene.manager.trials(experiment)}
    seen = 0
    for machine in scene.machines:
        expect_no_double_booking(machine, uuids[machine.name])
        for record in read_records(machine):
            assert record.gpus is not None
            assert len(record.gpus) == asked[record.trial_id]
            seen += 1
        assert {uuid for record in read_records(machine) for uuid in record.gpus or ()} == set(uuids[machine.name])
    assert seen == sum(WANTED.values())  # every trial has run once
    scene.leave()


def expect_no_double_booking(machine: Machine, uuids: tuple[str, ...]) -> None:
    """By the machine's own clock, and what the trials on it have written down: each GPU was held by one at a time."""
    for uuid in uuids:
        holders = [record for record in read_records(machine) if uuid in (record.gpus or ())]
        for before, after in pairwise(holders):
            assert before.end is not None
            assert before.end <= after.begin, f"GPU {uuid} of {machine.name}: {before} and {after}"
