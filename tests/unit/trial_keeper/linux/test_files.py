"""Files are replaced as a whole, and nothing half-written stays."""

from pathlib import Path

import pytest

from proctor.trial_keeper.linux.files import replace_file


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"", b"x" * 100_000):
        replace_file(str(path), data, durable=durable, mode=0o640)
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_put_in_place_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    with pytest.raises(OSError):
        replace_file(str(tmp_path / "missing" / "file"), b"x", durable=False)
    with pytest.raises(OSError):
        replace_file(str(tmp_path / "folder"), b"x", durable=False)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_writer_has_left_goes_with_the_next_replacement(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / "file.new").write_text("half of some longer te")
    replace_file(str(path), b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
