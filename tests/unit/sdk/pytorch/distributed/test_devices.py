"""Which devices a run gets (row X1), told by lists of GPUs that are not there."""

from typing import Any

import pytest
import torch

from proctor.sdk.pytorch import ConfigurationError, Trainer
from proctor.sdk.pytorch.distributed import launch
from proctor.sdk.pytorch.distributed.launch import (
    TorchrunPlace,
    choose_devices,
    choose_local_device,
    choose_threads,
    find_torchrun,
)

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "41231",
}


def choose(available: "list[int]", **options: Any) -> "list[str]":
    return [str(device) for device in choose_devices(Trainer("run", **options).settings, available)]


@pytest.mark.parametrize(
    ("available", "options", "chosen"),
    [
        ([], {}, ["cpu"]),
        ([0, 1], {"use_cpu": True}, ["cpu"]),
        ([], {"processes": 3}, ["cpu"] * 3),
        ([0], {"use_cpu": True, "processes": 2}, ["cpu"] * 2),
        ([0], {}, ["cuda:0"]),
        ([0, 1, 2], {}, ["cuda:0", "cuda:1", "cuda:2"]),
        ([0, 1, 2], {"gpus": [2, 0]}, ["cuda:2", "cuda:0"]),
    ],
)
def test_X1_named_gpus_are_used_in_their_order_else_all_and_the_cpu_without_one_or_when_it_is_asked_for(
    available: "list[int]", options: "dict[str, Any]", chosen: "list[str]"
) -> None:
    assert choose(available, **options) == chosen


@pytest.mark.parametrize(
    ("available", "options", "text"),
    [
        ([0, 1], {"gpus": [0, 5, 7]}, r"there is no GPU 5, 7; available are \[0, 1\]"),
        ([0, 1], {"gpus": []}, "gpus is empty"),
        ([0, 1], {"gpus": [1, 1]}, "names one twice"),
        ([], {"gpus": [0]}, "this process sees no GPU"),
        ([0, 1], {"processes": 2}, "processes=2 is for the CPU"),
    ],
)
@pytest.mark.parametrize("kind", [ConfigurationError, ValueError, RuntimeError])
def test_X1_gpus_that_cannot_be_used_are_refused(
    available: "list[int]", options: "dict[str, Any]", text: str, kind: "type[Exception]"
) -> None:
    with pytest.raises(kind, match=text):
        choose(available, **options)


def test_X1_what_the_machine_has_is_asked_when_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_gpus", lambda: [0, 1])
    assert choose_devices(Trainer("run").settings) == (torch.device("cuda", 0), torch.device("cuda", 1))


def test_the_threads_are_shared_unless_the_environment_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [choose_threads(processes) for processes in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert choose_threads(16) == 8


def test_torchrun_is_found_by_its_environment() -> None:
    assert find_torchrun({}) is None
    assert find_torchrun({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert find_torchrun(TORCHRUN) == TorchrunPlace(rank=5, local_rank=1, world_size=8, local_world_size=4)


@pytest.mark.parametrize("name", sorted(set(TORCHRUN) - {"TORCHELASTIC_RUN_ID"}))
def test_half_an_environment_of_torchrun_is_refused(name: str) -> None:
    rest = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(ConfigurationError, match=f"{name} is not set"):
        find_torchrun(rest)


def test_an_environment_of_torchrun_must_hold_numbers() -> None:
    with pytest.raises(ConfigurationError, match="to integers; found"):
        find_torchrun({**TORCHRUN, "RANK": "first"})


def test_the_local_rank_picks_the_gpu() -> None:
    place = TorchrunPlace(rank=5, local_rank=1, world_size=8, local_world_size=2)
    assert choose_local_device(place, (torch.device("cuda", 3), torch.device("cuda", 2))) == torch.device("cuda", 2)
    assert choose_local_device(place, (torch.device("cpu"),)) == torch.device("cpu")


def test_more_processes_than_gpus_are_refused() -> None:
    place = TorchrunPlace(rank=0, local_rank=0, world_size=4, local_world_size=4)
    with pytest.raises(ConfigurationError, match="4 processes on this machine and there are 2 GPUs"):
        choose_local_device(place, (torch.device("cuda", 0), torch.device("cuda", 1)))
