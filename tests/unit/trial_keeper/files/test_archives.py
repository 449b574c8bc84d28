"""An archive becomes its folder, and nothing in it lands or leads anywhere else."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.files.archives import unpack_archive

Member = tuple[tarfile.TarInfo, bytes]


def file(name: str, data: bytes = b"data", mode: int = 0o644) -> Member:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), mode, 1_700_000_000
    return member, data


def other(name: str, kind: bytes, linkname: str = "", mode: int = 0o755) -> Member:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, linkname, mode
    return member, b""


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    def make(*members: Member) -> Path:
        path = tmp_path / "archive.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for member, data in members:
                archive.addfile(member, io.BytesIO(data))
        return path

    return make


def test_files_folders_and_links_come_out_as_they_went_in(tmp_path: Path, pack: Callable[..., Path]) -> None:
    archive = pack(
        other("src", tarfile.DIRTYPE),
        file("src/train.py", b"print(1)"),
        file("deep/down/run.sh", b"#!/bin/sh", 0o755),
        other("src/link.py", tarfile.SYMTYPE, "train.py"),
        other("top", tarfile.SYMTYPE, "src/../deep"),
        other("same.py", tarfile.LNKTYPE, "src/train.py"),
        file("empty", b""),
    )
    folder = tmp_path / "out"
    assert unpack_archive(archive, folder) == (6, 17)
    assert (folder / "src" / "train.py").read_bytes() == b"print(1)"
    assert (folder / "src" / "train.py").stat().st_mtime == 1_700_000_000
    assert (folder / "top" / "down" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(folder / "src" / "link.py") == "train.py"
    assert (folder / "same.py").read_bytes() == b"print(1)"
    assert (folder / "empty").read_bytes() == b""


def test_rights_for_others_and_set_id_bits_are_dropped_and_ours_kept(tmp_path: Path, pack: Callable[..., Path]) -> None:
    archive = pack(
        file("setuid", mode=0o6777), file("unreadable", mode=0o000), other("closed", tarfile.DIRTYPE, mode=0o000)
    )
    unpack_archive(archive, tmp_path / "out")
    modes = {name: (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in ("setuid", "unreadable", "closed")}
    assert modes == {"setuid": 0o755, "unreadable": 0o600, "closed": 0o700}


@pytest.mark.parametrize(
    "members",
    [
        [file("/etc/evil")],
        [file("../evil")],
        [file("a/../../evil")],
        [other("link", tarfile.SYMTYPE, "/etc")],
        [other("link", tarfile.SYMTYPE, "../outside")],
        [other("a/link", tarfile.SYMTYPE, "../../outside")],
        [other("link", tarfile.LNKTYPE, "../outside")],
        [other("link", tarfile.LNKTYPE, "/etc/passwd")],
        [other("here", tarfile.SYMTYPE, "."), other("here/up", tarfile.SYMTYPE, "..")],
        [other("pipe", tarfile.FIFOTYPE)],
        [other("disk", tarfile.BLKTYPE)],
        [other("tty", tarfile.CHRTYPE)],
        [other(".", tarfile.SYMTYPE, "..")],
    ],
    ids=lambda members: f"{members[-1][0].name} {members[-1][0].linkname}",
)
def test_what_leads_out_or_is_no_file_is_refused_by_its_name(
    tmp_path: Path, pack: Callable[..., Path], members: list[Member]
) -> None:
    (tmp_path / "outside").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(CommandRefused, match="archive"):
        unpack_archive(pack(*members), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "archive.tar.gz", "out"])
    assert os.listdir(tmp_path / "outside") == []


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"not a gzip file", lambda _: b""]
)
def test_a_damaged_archive_is_refused(
    tmp_path: Path, pack: Callable[..., Path], damage: Callable[[bytes], bytes]
) -> None:
    archive = pack(file("large", os.urandom(100_000)))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(CommandRefused, match="not a complete"):
        unpack_archive(archive, tmp_path / "out")


def test_a_name_that_comes_twice_is_an_error_and_not_an_overwrite(tmp_path: Path, pack: Callable[..., Path]) -> None:
    with pytest.raises(OSError, match="exists"):
        unpack_archive(pack(file("a", b"1"), file("a", b"2")), tmp_path / "out")
