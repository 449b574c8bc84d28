"""What ranks say to each other (rows X4, X5), and what becomes of it in a single process.

That several ranks hear each other is tested in `integration/sdk/pytorch/test_processes.py`.
"""

import queue
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from proctor.sdk.pytorch import (
    ConfigurationError,
    HandoverQueue,
    all_reduce_tensors,
    barrier,
    gather_into_tensor,
    get_ranks,
    global_print,
    local_print,
    unwrap,
    wrap_for_ranks,
)
from proctor.sdk.pytorch.distributed.launch import Failure, describe_death, describe_failure, find_reason, make_error
from proctor.sdk.pytorch.distributed.ranks import GPU_BACKEND, Ranks, choose_backend, choose_timeout
from proctor.sdk.pytorch.errors import RankFailedError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def group() -> "Iterator[None]":
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_X4_the_backend_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert choose_backend(CPU, None) == choose_backend(CPU, "gloo") == "gloo"
    assert choose_backend(GPU, None) == choose_backend(GPU, "nccl") == GPU_BACKEND
    assert choose_backend(GPU, "gloo") == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert choose_backend(GPU, None) == "gloo"


def test_X4_ranks_wait_for_the_one_that_waits_for_its_trial_scheduler() -> None:
    assert choose_timeout("gloo", 0.0) is None
    assert (choose_timeout("gloo", 600.0), choose_timeout(GPU_BACKEND, 600.0)) == (2400.0, 1200.0)


def test_X4_nccl_is_refused_on_the_cpu() -> None:
    with pytest.raises(ConfigurationError, match="backend='nccl' works between GPUs only"):
        choose_backend(CPU, "nccl")


@pytest.mark.parametrize("call", [gather_into_tensor, all_reduce_tensors])
def test_X5_without_a_group_tensors_cannot_be_joined(call: Any) -> None:
    with pytest.raises(RuntimeError, match=f"{call.__name__} needs several processes, but there is no process group"):
        call(torch.ones(1))


def test_X5_without_a_group_the_rest_does_nothing_special(capsys: pytest.CaptureFixture[str]) -> None:
    barrier()
    global_print("for all", end="!")
    local_print("for a machine")
    assert capsys.readouterr().out == "for all!for a machine\n"
    assert (get_ranks().rank, get_ranks().world_size) == (0, 1)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.usefixtures("group")
def test_X5_the_device_follows_the_tensor(device: str) -> None:
    tensor = torch.tensor([1.0, 2.0], device=device)
    assert gather_into_tensor(tensor).device == all_reduce_tensors([tensor, tensor]).device == tensor.device
    assert gather_into_tensor(tensor, (1, 2)).tolist() == [[1.0, 2.0]]
    assert gather_into_tensor(torch.tensor(3)).tolist() == [3]
    assert all_reduce_tensors(tensor) is tensor
    assert all_reduce_tensors([tensor, tensor]).tolist() == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.usefixtures("group")
def test_a_group_that_was_made_elsewhere_is_used() -> None:
    ranks = get_ranks()
    assert ranks.gather("value") == ["value"]
    assert ranks.broadcast({"a": 1}) == {"a": 1}
    assert (ranks.any(True), ranks.any(False)) == (True, False)


@pytest.mark.usefixtures("group")
def test_a_sum_reaches_tensors_of_any_layout_and_leaves_no_gradient() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    assert get_ranks().sum(tensor) is tensor
    leaf = torch.ones(2, requires_grad=True)
    get_ranks().sum(leaf)
    assert not gather_into_tensor(leaf * 2).requires_grad


def test_one_rank_needs_no_replica() -> None:
    network = torch.nn.Linear(2, 2)
    assert wrap_for_ranks(network, Ranks()) is network
    assert unwrap(network) is network


def test_what_is_handed_over_comes_in_order() -> None:
    values = HandoverQueue()
    for value in (1, "two", [3]):
        values.put(value)
    assert not values.empty()
    assert values.get() == 1
    assert values.get_all() == ["two", [3]]
    for get in (values.get, values.get_nowait, partial(values.get, timeout=0.01), partial(values.get, False)):
        with pytest.raises(queue.Empty):
            get()
    values.put(4)
    values.put(5)
    values.put(6)
    assert [values.get(timeout=5), values.get_nowait(), values.get(True, None)] == [4, 5, 6]


def test_the_reason_of_failures_is_the_first_that_no_lost_peer_explains() -> None:
    lost = describe_failure(0, RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"))
    wrapped = RuntimeError("the step failed")
    wrapped.__cause__ = dist.DistNetworkError("gone")
    second = describe_failure(2, wrapped)
    own = describe_failure(1, LookupError("nothing there"))
    assert find_reason([lost, second, own]) is own
    assert find_reason([lost, second]) is lost
    death = describe_death(3, -9, has_begun=True)
    assert find_reason([lost, death, second]) is death
    assert find_reason([death, own]) is own  # which was before


@pytest.mark.parametrize(
    ("code", "has_begun", "told"),
    [
        (-9, True, "rank 2 was ended by SIGKILL"),
        (-11, False, "rank 2 was ended by SIGSEGV"),
        (-200, True, "rank 2 was ended by signal 200"),
        (0, True, "rank 2 ended with exit code 0"),
        (1, False, "__main__"),  # a script without its guard
    ],
)
def test_a_death_is_told_by_rank_and_signal_and_what_may_be_missing(code: int, has_begun: bool, told: str) -> None:
    summary = describe_death(2, code, has_begun=has_begun).summary
    assert told in summary
    assert ("__main__" in summary) is (code == 1)


def test_an_exception_that_cannot_be_read_here_is_told() -> None:
    failure = Failure(1, 0.0, is_consequence=False, summary="OddError: x", traceback="lines", error=b"no pickle")
    error = make_error(failure)
    assert isinstance(error, RankFailedError)
    assert "rank 1 failed: OddError: x" in str(error)
    assert "lines" in str(error.__cause__)


def test_an_exception_keeps_its_notes_and_what_can_be_sent_of_its_arguments() -> None:
    odd = LookupError("text", lambda: None)
    error = make_error(describe_failure(0, odd))
    assert type(error) is LookupError
    assert error.args[0] == "text"
    whole = OSError(28, "No space left on device", "/somewhere")
    error = make_error(describe_failure(0, whole))
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (28, "/somewhere")
