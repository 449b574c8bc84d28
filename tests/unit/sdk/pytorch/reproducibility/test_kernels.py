"""One switch for everything that makes kernels repeat, put back after the run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel
from fakes.thread_ranks import call_on_ranks

from proctor.sdk.pytorch import NotExactError, NotExactWarning, Trainer
from proctor.sdk.pytorch.reproducibility.fingerprint import (
    find_differences,
    kernel_switches,
    read_precisions,
    report_gaps,
    restore_precisions,
    take_fingerprint,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def read_switches() -> "tuple[Any, ...]":
    """As they are now."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_X8_the_deterministic_switch_sets_all_and_puts_them_back_however_the_run_ends(fails: bool) -> None:
    before = read_switches()
    seen: list[Any] = []

    def look(state: object) -> None:
        seen.append(read_switches())
        if fails:
            raise OSError("no")

    with pytest.raises(RuntimeError) if fails else nullcontext():
        Trainer("run", total_steps=1, enable_deterministic=True, use_cpu=True).fit(
            RecordingModel(on_batch=look), RangeData(1)
        )
    assert seen == [(True, True, False, False, "highest", ":4096:8")]
    assert read_switches() == before


def test_X8_benchmarking_is_on_while_training_and_off_while_validating() -> None:
    seen: list[tuple[str, bool]] = []

    class Watching(RecordingModel):
        def train_step(self, batch: Any, state: Any) -> None:
            seen.append(("train", torch.backends.cudnn.benchmark))

        def valid_step(self, batch: Any, step: int) -> None:
            seen.append(("valid", torch.backends.cudnn.benchmark))

    Trainer("run", total_steps=2, valid_frequency=1, enable_cudnn_benchmark=True, use_cpu=True).fit(
        Watching(), RangeData(1, valid=1)
    )
    assert seen == [("train", True), ("valid", False)] * 2
    assert torch.backends.cudnn.benchmark is False


def use_gpu(monkeypatch: pytest.MonkeyPatch, *, allocations: int) -> None:
    """Pretend that memory of the second of two GPUs was taken so often."""
    stats = [{}, {"allocation.all.allocated": allocations}]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda gpu: stats[gpu])


def test_X8_on_a_gpu_what_the_switches_leave_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(device: torch.device = GPU, *, deterministic: bool = True, benchmark: bool = False) -> str:
        with kernel_switches(device, deterministic=deterministic, benchmark=benchmark) as gaps:
            return "; ".join(gaps)

    monkeypatch.delenv(WORKSPACE, raising=False)
    assert find() == ""  # it is set before CUDA starts
    use_gpu(monkeypatch, allocations=0)
    assert find() == ""  # a device has been chosen, and no more
    use_gpu(monkeypatch, allocations=1)
    assert f"a GPU was used before {WORKSPACE} could be set" in find()
    assert find(CPU) == ""
    monkeypatch.setenv(WORKSPACE, ":16:8")
    assert find() == ""
    assert "another order each time; set enable_deterministic" in find(deterministic=False)
    assert "chosen by timing" in find(deterministic=False, benchmark=True)
    assert find(CPU, deterministic=False, benchmark=True) == ""


def test_X8_a_workspace_with_which_cuda_has_started_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, "x")  # so that it is put back after the test
    monkeypatch.delenv(WORKSPACE)
    with kernel_switches(GPU, deterministic=True, benchmark=False):
        use_gpu(monkeypatch, allocations=1)
    assert os.environ[WORKSPACE] == ":4096:8"
    with kernel_switches(GPU, deterministic=True, benchmark=False) as gaps:
        assert gaps == []


def test_X8_each_gap_of_any_rank_is_told_once_by_the_main_one() -> None:
    parts = [["one"], ["one", "two"]]

    with pytest.warns(NotExactWarning) as reported:
        assert call_on_ranks(lambda ranks: report_gaps(parts[ranks.rank], ranks=ranks, strict=False)) == [None, None]
    assert [str(warning.message) for warning in reported] == ["not exact: one", "not exact: two"]
    for problem in call_on_ranks(lambda ranks: report_gaps(parts[ranks.rank], ranks=ranks, strict=True)):
        assert isinstance(problem, NotExactError)
        assert "bit for bit: one; two. " in str(problem)


@pytest.mark.parametrize("options", [{}, {"enable_deterministic": True}, {"strict_resume": True}])
def test_X8_a_run_tells_gaps_when_it_is_resumed_or_is_to_be_exact_and_strict_ones_do_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: "dict[str, Any]"
) -> None:
    @contextmanager
    def switches(*_: object, **__: object) -> "Iterator[list[str]]":
        yield ["something is left open"]

    def fit(steps: int) -> None:
        Trainer("run", total_steps=steps, chkpt_root=tmp_path, use_cpu=True, **options).fit(
            RecordingModel(), RangeData(1)
        )

    monkeypatch.setattr("proctor.sdk.pytorch.loop.kernel_switches", switches)
    if "strict_resume" in options:
        with pytest.raises(NotExactError, match="something is left open"):
            fit(1)
        return
    with pytest.warns(NotExactWarning, match="not exact: something") if options else nullcontext():
        fit(1)
    with pytest.warns(NotExactWarning, match="not exact: something is left open") as reported:
        fit(2)
    assert len(reported) == 1


needs_newer_switches = pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this version of torch has only the older switches"
)
SWITCHES = (
    "set_float32_matmul_precision('medium')",
    "backends.cuda.matmul.allow_tf32 = True",
    "backends.cudnn.allow_tf32 = False",
    "backends.fp32_precision = 'tf32'",
    "backends.cuda.matmul.fp32_precision = 'tf32'",
    "backends.cudnn.conv.fp32_precision = 'ieee'",
    "backends.mkldnn.matmul.fp32_precision = 'bf16'",
)


@pytest.fixture
def precisions() -> "Iterator[None]":
    """The precisions are put back after the test."""
    before = read_precisions()
    yield
    restore_precisions(before)


@needs_newer_switches
@pytest.mark.usefixtures("precisions")
@pytest.mark.parametrize("switch", SWITCHES)
def test_X8_precisions_set_by_either_kind_of_switch_are_full_for_a_deterministic_run_and_then_as_before(
    switch: str,
) -> None:
    exec(f"torch.{switch}")
    before = read_precisions()
    seen: list[Any] = []
    model = RecordingModel(on_batch=lambda state: seen.append(read_precisions()))
    for deterministic in (True, False):
        Trainer("run", total_steps=1, enable_deterministic=deterministic, use_cpu=True).fit(model, RangeData(1))
    assert set(seen[0].values()) == {"highest", False, "ieee"}
    assert seen[1] == read_precisions() == before


@needs_newer_switches
@pytest.mark.usefixtures("precisions")
def test_R6_a_precision_that_only_the_newer_switches_know_is_told() -> None:
    before = take_fingerprint("cpu")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    (reported,) = find_differences(before, take_fingerprint("cpu"))
    assert reported == "fp32 precision of mkldnn.conv was 'none', is 'bf16'"


def test_a_kernel_without_a_deterministic_form_is_refused() -> None:
    with kernel_switches(CPU, deterministic=True, benchmark=False):
        with pytest.raises(RuntimeError, match="deterministic"):
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
