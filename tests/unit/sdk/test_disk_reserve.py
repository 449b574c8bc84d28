"""The reserve: counted in place, records kept and moved once, whatever dies in between."""

import os
from pathlib import Path

import pytest

from proctor.sdk.disk_reserve import RESERVE_BYTES, Reserve, read_content, read_entries

FINAL = b'{"kind":"final","value":{"default":0.5,"name":"\\u00e4"},"time":1764000000.500000}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "reserve"
    path.write_bytes(bytes(RESERVE_BYTES))
    return path


def entries(path: Path) -> list[dict[str, object]]:
    with path.open("rb") as file:
        return read_entries(read_content(file.fileno()))


def moved(reserve: Reserve) -> list[bytes]:
    found: list[bytes] = []
    assert reserve.move(lambda record: found.append(record) is None)
    return found


def test_losses_are_added_up_by_member_wherever_they_come_from(path: Path) -> None:
    for count in (1, 10, 100):
        assert Reserve(str(path), "0").count(count)
        assert Reserve(str(path), "10").count(2)
    assert entries(path) == [{"member": "0", "lost": 111}, {"member": "10", "lost": 6}]
    assert path.stat().st_size == RESERVE_BYTES


def test_processes_that_count_at_once_lose_no_count(path: Path) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            done = all(Reserve(str(path), "0").count(1) for _ in range(50))
            os._exit(0 if done else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert entries(path) == [{"member": "0", "lost": 200}]


def test_a_record_is_kept_as_it_is_and_moved_once(path: Path) -> None:
    reserve = Reserve(str(path), "0")
    assert reserve.keep(FINAL) is True
    assert Reserve(str(path), "1").keep(FINAL) is True
    assert reserve.move(lambda record: False) is False
    assert moved(reserve) == [FINAL]
    assert moved(reserve) == []
    assert entries(path) == [{"member": "1", "record": FINAL.decode()}]


def test_of_a_record_that_does_not_fit_the_end_is_noted(path: Path) -> None:
    long = b'{"kind":"final","value":"' + b"x" * RESERVE_BYTES + b'","time":1764000000.500000}\n'
    assert Reserve(str(path), "0").keep(long) is False
    assert entries(path) == [{"member": "0", "waiting": long.decode()[-64:]}]
    assert path.stat().st_size == RESERVE_BYTES


def test_a_line_torn_by_a_kill_spoils_neither_what_comes_after_it_nor_the_count(path: Path) -> None:
    reserve = Reserve(str(path), "0")
    with path.open("r+b") as file:
        file.write(b'{"member":"0","lost":    ')
    assert reserve.count(3)
    assert reserve.count(4)
    assert entries(path) == [{"member": "0", "lost": 7}]


def test_without_a_reserve_nothing_is_made_and_nothing_raised(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none" / "none", tmp_path):
        reserve = Reserve(str(path), "0")
        assert not reserve.count(1)
        assert reserve.keep(FINAL) is None
        assert not reserve.move(lambda record: True)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_stopped_with_the_lock_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from proctor.sdk import disk_reserve

    monkeypatch.setattr(disk_reserve, "_LOCK_PAUSE_SECONDS", 0.0)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not Reserve(str(path), "0").count(1)
        fcntl.flock(other, fcntl.LOCK_UN)
    assert Reserve(str(path), "0").count(1)
