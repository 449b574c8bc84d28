"""How an end is described."""

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.trial_keeper.protocol import EndReason
from proctor.trial_keeper.reaper.exits import classify, last_line_of


def status(code: int = 0, number: int = 0) -> int:
    """A wait status as the kernel makes it."""
    return code << 8 | number


def reported(wait_status: int, *, stop: str | None = None, memory: bool = False, line: str = "") -> tuple[str, str]:
    ending = classify(wait_status, stop_reason=stop, stop_detail="we did", out_of_memory=memory, last_line=line)
    return ending.reason, ending.detail


@pytest.mark.parametrize(
    ("wait_status", "reason", "said"),
    [
        (status(0), "EXITED_OK", ""),
        (status(1), "EXITED_ERROR", "exit code 1: boom"),
        (status(126), "EXITED_ERROR", "cannot be executed"),
        (status(127), "EXITED_ERROR", "command not found"),
        (status(number=signal.SIGSEGV), "EXITED_ERROR", "SIGSEGV"),
        (status(number=signal.SIGABRT), "EXITED_ERROR", "SIGABRT"),
        (status(number=signal.SIGBUS), "EXITED_ERROR", "SIGBUS"),
        (status(number=signal.SIGFPE), "EXITED_ERROR", "SIGFPE"),
        (status(number=signal.SIGILL), "EXITED_ERROR", "SIGILL"),
        (status(number=signal.SIGKILL), "SIGNALED", "from outside"),
        (status(number=signal.SIGTERM), "SIGNALED", "SIGTERM"),
        (status(number=signal.SIGRTMIN + 3), "SIGNALED", "SIG"),
        (status(128 + 9), "SIGNALED", "its command was killed by signal 9"),
        (status(128 + 11), "EXITED_ERROR", "SIGSEGV"),
        (status(255), "EXITED_ERROR", "exit code 255"),
        (status(128), "EXITED_ERROR", "exit code 128"),
    ],
)
def test_every_kind_of_end_has_its_reason_and_sentence(wait_status: int, reason: str, said: str) -> None:
    found, detail = reported(wait_status, line="boom")
    assert found == reason
    assert said in detail


@pytest.mark.parametrize("wait_status", [status(number=signal.SIGKILL), status(128 + 9)])
def test_sigkill_is_blamed_on_memory_only_when_the_kernel_killed_for_memory(wait_status: int) -> None:
    assert reported(wait_status, memory=True)[0] == "OUT_OF_MEMORY"
    assert reported(wait_status, memory=False)[0] == "SIGNALED"
    assert reported(status(1), memory=True)[0] == "EXITED_ERROR"


@given(st.integers(0, 255), st.sampled_from([0, *range(1, 65)]), st.booleans())
def test_what_we_have_stopped_ends_as_we_said(code: int, number: int, memory: bool) -> None:
    wait_status = status(number=number) if number else status(code)
    for reason in ("CANCELED", "DEADLINE", "LEASE_EXPIRED"):
        assert reported(wait_status, stop=reason, memory=memory) == (reason, "we did")


@given(st.integers(0, 255), st.sampled_from([0, *range(1, 65)]), st.booleans())
def test_every_reason_is_one_of_the_protocol(code: int, number: int, memory: bool) -> None:
    reason, detail = reported(status(number=number) if number else status(code), memory=memory)
    assert EndReason(reason)
    assert bool(detail) == (reason != "EXITED_OK")


def test_the_last_line_is_the_last_one_with_something_in_it(tmp_path: Path) -> None:
    file = tmp_path / "stderr"
    file.write_bytes(b"x" * 10_000 + b"\nfirst\n  last \xff \n\n  \n")
    assert last_line_of(str(file)) == "last \ufffd"
    assert last_line_of(str(file), limit=2) == "la"
    assert last_line_of(str(tmp_path / "missing")) == ""
