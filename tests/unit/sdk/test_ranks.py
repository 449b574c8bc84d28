"""Which process of a trial this one is, by what launchers leave in its environment."""

import pytest

from proctor.sdk.protocol import ENV_INHERITED_LAUNCHES, ENV_MEMBER, describe_launches, find_rank

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({ENV_MEMBER: "0"}, 0),
        ({ENV_MEMBER: "2"}, 2),
        (TORCHRUN, 3),
        ({ENV_MEMBER: "1", **TORCHRUN}, 3),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, 1),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", **TORCHRUN}, 3),
    ],
    ids=str,
)
def test_the_launcher_that_started_the_process_says_its_rank(environment: dict[str, str], rank: int) -> None:
    assert find_rank(environment) == rank


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "3"},
        {"RANK": "16", "WORLD_SIZE": "4"},
        {"RANK": "one", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"SLURM_PROCID": "1"},
        {"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"},
    ],
    ids=str,
)
def test_a_variable_that_is_no_rank_among_processes_does_not_count(environment: dict[str, str]) -> None:
    assert find_rank({ENV_MEMBER: "0", **environment}) == 0


def test_a_rank_that_the_trial_itself_was_started_with_does_not_count() -> None:
    outer = {**TORCHRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    started = {**outer, ENV_INHERITED_LAUNCHES: describe_launches(outer)}
    assert find_rank(started) == 0
    assert find_rank({**started, "SLURM_STEP_ID": "1"}) == 1


def test_a_launch_below_the_trials_start_counts_though_it_gives_the_same_rank() -> None:
    started = {**TORCHRUN, ENV_INHERITED_LAUNCHES: describe_launches(TORCHRUN)}
    assert find_rank(started) == 0
    assert find_rank({**started, "MASTER_PORT": "41234"}) == 3


def test_an_environment_without_launchers_has_nothing_to_describe() -> None:
    assert describe_launches({"PATH": "/bin", "RANK": "7"}) == ""
