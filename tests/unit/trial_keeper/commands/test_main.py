"""The commands on a node, as far as they need no process: what they read, what they answer, what they refuse."""

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from proctor.trial_keeper.commands import directory as node_directory
from proctor.trial_keeper.commands.directory import fresh_socket, point, prepare
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.commands.keeper import remove
from proctor.trial_keeper.commands.main import COMMANDS
from proctor.trial_keeper.commands.main import __doc__ as described
from proctor.trial_keeper.commands.survey import probe
from proctor.trial_keeper.commands.unpack import unpack
from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.settings import KeeperSettings, write_settings


def run(name: str, text: bytes) -> tuple[int, Any]:
    """A command as a process of its own, from the source tree."""
    command = [sys.executable, "-m", "proctor.trial_keeper", name]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    assert done.stdout.count(b"\n") == 1, done
    return done.returncode, json.loads(done.stdout)


def give(name: str, *, following: bytes = b"", **body: Any) -> CommandInput:
    return CommandInput(name, body, io.BytesIO(following))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / ".proctor" / "nodes" / "m-n"
    prepare(give("prepare", directory=str(path)))
    return path


def test_every_command_is_described() -> None:
    assert described is not None
    for name in COMMANDS:
        assert f"\n{name:8} " in described, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dance", b"{}\n", "there is no command 'dance'; known: pod, point, prepare, probe"),
        ("prepare", b"", "should begin with a line of JSON"),
        ("prepare", b"hello\n", "should begin with a line of JSON, found b'hello"),
        ("prepare", b"[]\n", "prepare needs one JSON object on its standard input, found list"),
        ("prepare", b"{}\n", "prepare: directory should be a text, found None"),
        ("prepare", b'{"directory": "relative"}\n', "directory should be an absolute path below a home"),
        ("remove", b'{"directory": "/"}\n', "directory should be an absolute path below a home"),
    ],
)
def test_what_cannot_be_understood_is_answered_with_a_sentence(name: str, text: bytes, said: str) -> None:
    code, answer = run(name, text)
    assert (code, list(answer)) == (1, ["error"])
    assert said in answer["error"]


def test_prepare_makes_private_folders_and_gives_a_fresh_socket_each_time(tmp_path: Path) -> None:
    path = tmp_path / ".proctor" / "nodes" / "m-n"
    first = prepare(give("prepare", directory=str(path)))
    (path / "code" / "abc").mkdir()
    (path / "code" / ".unfinished-elsewhere-1").mkdir()
    (path / "jobs" / "T.1.json").touch()
    second = prepare(give("prepare", directory=str(path)))
    assert first["socket"] != second["socket"]
    assert {key: second[key] for key in ("directory", "codes", "keeper", "jobs")} == {
        "directory": str(path),
        "codes": ["abc"],
        "keeper": None,
        "jobs": 1,
    }
    for folder in (path.parent.parent, path.parent, path, path / "run", path / "code", path / "uploads"):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert os.listdir(path / "run") == []


def test_a_home_in_a_long_path_gets_its_socket_in_a_private_temporary_folder(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 25) / "m-n"
    answers = [prepare(give("prepare", directory=str(path))) for _ in range(2)]
    folders = [Path(answer["socket"]).parent for answer in answers]
    assert all(len(answer["socket"]) <= 100 for answer in answers)
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    point(give("point", directory=str(path), socket=answers[1]["socket"]))
    assert [folder.exists() for folder in folders] == [False, True], "the earlier one is removed"
    assert remove(give("remove", directory=str(path), gpu_lock_directory=str(tmp_path / "locks")))["removed"]
    assert not folders[1].exists()


def test_a_file_system_that_takes_no_sockets_is_avoided(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_directory, "_takes_sockets", lambda path: False)
    path = Path(fresh_socket(directory))
    assert path.parent.parent == Path("/tmp")
    assert node_directory.remove_temporary_folders(directory) == []
    assert not path.parent.exists()


def test_point_swaps_the_pointer_and_removes_earlier_sockets(directory: Path) -> None:
    (directory / "run" / "old.sock").touch()
    (directory / "run" / "new.sock").touch()
    path = str(directory / "run" / "new.sock")
    assert point(give("point", directory=str(directory), socket=path)) == {"socket": path}
    assert (directory / "socket").read_text() == path
    assert os.listdir(directory / "run") == ["new.sock"]


def test_on_a_full_disk_the_keeper_can_still_be_pointed_to_its_manager(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, data: bytes, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    point(give("point", directory=str(directory), socket="/a/long/path"))
    monkeypatch.setattr(node_directory, "replace_file", refuse)
    point(give("point", directory=str(directory), socket="/b/path"))
    assert (directory / "socket").read_text() == "/b/path"
    (directory / "socket").unlink()
    with pytest.raises(OSError, match="No space left"):
        point(give("point", directory=str(directory), socket="/b/path"))


def test_settings_that_stand_there_already_are_not_written_again(directory: Path) -> None:
    settings = KeeperSettings("n", "/pointer")
    write_settings(directory, settings, "secret")
    before = [(directory / name).stat().st_ino for name in ("config.json", "secret")]
    write_settings(directory, settings, "secret")
    assert [(directory / name).stat().st_ino for name in ("config.json", "secret")] == before
    write_settings(directory, settings, "another")
    assert (directory / "secret").read_text() == "another"
    assert (directory / "secret").stat().st_mode & 0o777 == 0o600


def test_what_the_system_refuses_is_told_in_its_own_word_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    body = json.dumps({"directory": str(tmp_path / "file" / "a" / "b" / "m-n")}).encode()
    code, answer = run("prepare", body)
    assert (code, answer["errno"]) == (1, "ENOTDIR")
    assert answer["error"] == f"the folder {tmp_path}/file/a cannot be made: Not a directory"


def test_something_else_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / ".proctor").write_text("mine")
    with pytest.raises(CommandRefused, match=r"\.proctor should be a folder of Proctor's"):
        prepare(give("prepare", directory=str(tmp_path / ".proctor" / "nodes" / "m-n")))


def pack(directory: Path, **files: bytes) -> dict[str, str]:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (directory / "uploads" / "code.tar.gz").write_bytes(target.getvalue())
    return {"archive": "uploads/code.tar.gz", "sha256": hashlib.sha256(target.getvalue()).hexdigest()}


def test_an_upload_is_unpacked_whole_and_removed_and_may_be_asked_for_again(directory: Path) -> None:
    request = {"directory": str(directory), "target": "code/abc", **pack(directory, train=b"1", data=b"22")}
    answer = unpack(give("unpack", **request))
    assert answer == {"target": str(directory / "code" / "abc"), "there_already": False, "files": 2, "bytes": 3}
    assert (directory / "code" / "abc" / "data").read_bytes() == b"22"
    assert os.listdir(directory / "uploads") == []
    assert unpack(give("unpack", **request))["there_already"]
    assert os.listdir(directory / "code") == ["abc"]


def test_a_damaged_upload_is_removed_and_leaves_nothing(directory: Path) -> None:
    request = pack(directory, train=b"1") | {"sha256": "0" * 64}
    with pytest.raises(CommandRefused, match="damaged in transit"):
        unpack(give("unpack", directory=str(directory), target="code/abc", **request))
    assert os.listdir(directory / "uploads") == []
    assert os.listdir(directory / "code") == []
    with pytest.raises(CommandRefused, match="not there; upload it again"):
        unpack(give("unpack", directory=str(directory), target="code/abc", **request))


@pytest.mark.parametrize("target", ["../elsewhere", "/etc/proctor", "code/../../x", "", "."])
def test_a_target_outside_of_the_keepers_directory_is_refused(directory: Path, target: str) -> None:
    with pytest.raises(CommandRefused, match="target should be"):
        unpack(give("unpack", directory=str(directory), target=target, **pack(directory, train=b"1")))


def test_an_archive_may_follow_its_command(directory: Path) -> None:
    request = {"directory": str(directory), **pack(directory, train=b"1")}
    data = (directory / "uploads" / "code.tar.gz").read_bytes()
    (directory / "uploads" / "code.tar.gz").write_bytes(b"an upload that was broken off")
    body = json.dumps({**request, "target": "code/abc", "size": len(data)}).encode() + b"\n"
    assert run("unpack", body + data)[1]["files"] == 1
    assert (directory / "code" / "abc" / "train").read_bytes() == b"1"
    assert os.listdir(directory / "uploads") == []
    again = give("unpack", **request, target="code/def", size=len(data), following=data[:-1])
    with pytest.raises(CommandRefused, match="damaged in transit"):
        unpack(again)
    assert (os.listdir(directory / "uploads"), os.listdir(directory / "code")) == ([], ["abc"])


def test_probe_says_what_is_at_paths_and_whether_gpus_can_be_leased(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = [str(tmp_path), str(tmp_path / "file"), str(tmp_path / "nothing"), str(tmp_path / "file" / "below")]
    answer = probe(give("probe", gpu_lock_directory=str(tmp_path / "locks"), paths=paths))
    assert list(answer["paths"].values()) == ["folder", "file", "missing", "missing"]
    assert answer["gpu_lock_problem"] == ""
    assert not (tmp_path / "locks").exists(), "looking makes nothing"
    refused = probe(give("probe", gpu_lock_directory=str(tmp_path / "file" / "locks")))
    assert "should be a folder" in refused["gpu_lock_problem"]


def test_remove_leaves_no_trace_and_may_be_asked_for_again(directory: Path, tmp_path: Path) -> None:
    (directory / "experiments" / "deep").mkdir(parents=True)
    (directory / "experiments" / "link").symlink_to("/etc")
    locks = str(tmp_path / "locks")
    for _ in range(2):
        answer = remove(give("remove", directory=str(directory), gpu_lock_directory=locks))
        assert answer == {"removed": True, "jobs": 0, "left": []}
        assert os.listdir(tmp_path) == []


def test_remove_leaves_other_nodes_alone(directory: Path, tmp_path: Path) -> None:
    (directory.parent / "m-other").mkdir()
    assert remove(give("remove", directory=str(directory), gpu_lock_directory=str(tmp_path / "locks")))["removed"]
    assert os.listdir(directory.parent) == ["m-other"]


def test_remove_refuses_what_is_no_keepers_directory(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").touch()
    with pytest.raises(CommandRefused, match="does not look like a keeper's directory"):
        remove(give("remove", directory=str(tmp_path / "thesis"), gpu_lock_directory=str(tmp_path / "locks")))
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    with pytest.raises(CommandRefused, match="does not look like"):
        remove(give("remove", directory=str(tmp_path / "link"), gpu_lock_directory=str(tmp_path / "locks")))
    assert (tmp_path / "thesis" / "chapter1").exists()
