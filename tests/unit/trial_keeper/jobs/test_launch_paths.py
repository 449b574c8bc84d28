"""The paths of a launch on its node."""

from dataclasses import replace

from proctor.trial_keeper.jobs.launching import absolute_launch
from proctor.trial_keeper.protocol import Launch

LAUNCH = Launch("T.1", "token", "E", "T", 3, "/job", "true", "/code", "{}", None)


def test_relative_paths_are_below_the_keepers_directory() -> None:
    launch = replace(
        LAUNCH,
        directory="experiments/e1/trials/0-T/jobs/1",
        code_directory="./code/abc",
        environment_file="environment.json",
        resume_checkpoint="experiments/e1/checkpoints/3/",
        search_path="python/bin",
    )
    found = absolute_launch(launch, "/home/bob/.proctor/nodes/m-gpu-1")
    assert found == replace(
        launch,
        directory="/home/bob/.proctor/nodes/m-gpu-1/experiments/e1/trials/0-T/jobs/1",
        code_directory="/home/bob/.proctor/nodes/m-gpu-1/code/abc",
        environment_file="/home/bob/.proctor/nodes/m-gpu-1/environment.json",
        resume_checkpoint="/home/bob/.proctor/nodes/m-gpu-1/experiments/e1/checkpoints/3",
        search_path="/home/bob/.proctor/nodes/m-gpu-1/python/bin",
    )


def test_absolute_paths_and_what_is_not_there_stay_as_they_are() -> None:
    launch = replace(LAUNCH, code_directory="/data/link/../code", environment_file="/e.json", search_path="/opt/bin")
    assert absolute_launch(launch, "/keeper") == launch
    assert absolute_launch(LAUNCH, "/keeper") == LAUNCH
