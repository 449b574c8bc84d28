"""Which process is meant."""

import os

import pytest

from proctor.trial_keeper.linux import identity


def test_a_process_that_ends_while_it_is_looked_at_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(descriptor: int, size: int) -> bytes:
        raise ProcessLookupError(3, "No such process")  # what the kernel says once its file in /proc has lost it

    assert identity.start_time(os.getpid()) is not None
    opened = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "read", read)
    assert identity.start_time(os.getpid()) is None
    assert not identity.is_alive(os.getpid(), 1)
    assert len(os.listdir("/proc/self/fd")) == len(opened)
