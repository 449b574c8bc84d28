"""One switch for everything that makes kernels repeat, put back after the run."""

import os
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import Trainer
from proctor.sdk.pytorch.kernels import kernel_switches


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


def test_X8_the_deterministic_switch_sets_all_and_puts_them_back() -> None:
    before = read_switches()
    seen: list[Any] = []
    model = RecordingModel(on_batch=lambda state: seen.append(read_switches()))
    Trainer("run", total_steps=1, enable_deterministic=True, use_cpu=True).fit(model, RangeData(1))
    assert seen == [(True, True, False, False, "highest", ":4096:8")]
    assert read_switches() == before


def test_X8_they_are_put_back_when_the_run_fails() -> None:
    before = read_switches()

    def fail(state: object) -> None:
        raise OSError("no")

    with pytest.raises(RuntimeError):
        Trainer("run", total_steps=1, enable_deterministic=True, use_cpu=True).fit(
            RecordingModel(on_batch=fail), RangeData(1)
        )
    assert read_switches() == before


def test_X8_benchmarking_is_on_while_training_and_off_while_validating() -> None:
    seen: list[tuple[str, bool]] = []

    class Watching(RecordingModel):
        """Looks at the switch."""

        def train_step(self, batch: Any, state: Any) -> None:
            seen.append(("train", torch.backends.cudnn.benchmark))

        def valid_step(self, batch: Any, step: int) -> None:
            seen.append(("valid", torch.backends.cudnn.benchmark))

    Trainer("run", total_steps=2, valid_frequency=1, enable_cudnn_benchmark=True, use_cpu=True).fit(
        Watching(), RangeData(1, valid=1)
    )
    assert seen == [("train", True), ("valid", False)] * 2
    assert torch.backends.cudnn.benchmark is False


def test_X8_what_cannot_be_guaranteed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with kernel_switches(deterministic=True, benchmark=False) as gaps:
        assert len(gaps) == 1
        assert "CUBLAS_WORKSPACE_CONFIG" in gaps[0]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with kernel_switches(deterministic=True, benchmark=False) as gaps:
        assert gaps == []
        assert torch.are_deterministic_algorithms_enabled()


def test_a_kernel_without_a_deterministic_form_is_refused() -> None:
    with kernel_switches(deterministic=True, benchmark=False):
        with pytest.raises(RuntimeError, match="deterministic"):
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
