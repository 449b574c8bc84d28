"""A disk that has room but no inodes is called by its name, so that no user looks for bytes to free."""

import sqlite3

import pytest
from fakes.disks import Disk

from proctor.manager.app import prepare
from proctor.manager.process.instance import StartError
from proctor.manager.settings import Home
from proctor.manager.store.connections import explain, open_writer
from proctor.manager.store.errors import DatabaseUnusable

SENTENCE = "no inodes left.*; remove some files"


@pytest.fixture(autouse=True)
def _without_inodes(disk: Disk) -> None:
    disk.fill_inodes()


def test_a_home_that_cannot_be_made_says_so(disk: Disk) -> None:
    with pytest.raises(StartError, match=SENTENCE):
        prepare(Home(disk.folder / "home"))


def test_a_database_that_cannot_be_made_says_so(disk: Disk) -> None:
    with pytest.raises(DatabaseUnusable, match=SENTENCE):
        open_writer(str(disk.folder / "control.db"), "control")


def test_a_database_that_cannot_be_written_says_so(disk: Disk) -> None:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
    assert "no inodes left: remove some files" in explain(str(disk.folder / "metrics.db"), error)
    disk.free()
    assert "no inodes" not in explain(str(disk.folder / "metrics.db"), error)
