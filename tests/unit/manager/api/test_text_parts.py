"""Parts of logs by byte offset."""

from pathlib import Path

from proctor.manager.api.text import read_part


def test_what_follows_the_end_of_a_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    assert read_part(tmp_path / "log", 2, 2) == (b"34", 2)
    assert read_part(tmp_path / "log", -2, 9) == (b"45", 3)
    assert read_part(tmp_path / "log", 9, 9) == (b"", 9)


def test_a_reader_of_a_log_that_was_cut_goes_on_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    assert read_part(tmp_path / "log", 9, 9, is_cut=True) == (b"12345", 0)
    assert read_part(tmp_path / "log", 5, 9, is_cut=True) == (b"", 5)
