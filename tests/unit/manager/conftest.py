"""What tests of many modules of the manager begin with."""

from pathlib import Path

import pytest

from proctor.manager.settings import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with its folders, and nothing in them."""
    found = Home(tmp_path / "home")
    found.prepare()
    return found
