"""What all tests of sessions share: the process is afterwards as it was."""

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What user code does to this process is undone."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]
