"""Which files of the trial code travel, and as what."""

import asyncio
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.files import code as code_files
from proctor.training_services.files.code import IGNORE_FILES, CodeArchives, build_archive, read_tree

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "trial.py").write_text("print(1)\n")
    return folder


def paths(folder: Path) -> list[str]:
    return [entry.path for entry in read_tree(folder).entries]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.mark.parametrize(
    ("written", "patterns", "travel"),
    [
        ([".git/config", "a/__pycache__/x.pyc", "a/b.py", ".venv/bin/python", "c.pyc"], {}, ["a", "a/b.py"]),
        ([".venv/settings"], {".proctorignore": "!.venv/\n"}, [".proctorignore", ".venv", ".venv/settings"]),
        (
            ["data/big", "data/small", "runs/1", "note.txt"],
            {
                ".nniignore": "/runs\n*.txt\n/data/*\n",
                ".proctorignore": "!note.txt\n!/data/small\n.nniignore\n",
            },
            [".proctorignore", "data", "data/small", "note.txt"],
        ),
        (
            ["a/out/1", "a/keep.log", "out/2", "b.log"],
            {".proctorignore": "*.log\n", "a/.proctorignore": "/out\n!keep.log\n.proctorignore\n"},
            [".proctorignore", "a", "a/keep.log", "out", "out/2"],
        ),
    ],
    ids=[
        "version control and caches do not",
        "a pattern brings back what does not by default",
        "of both ignore files ours has the last word",
        "an ignore file speaks of its folder",
    ],
)
def test_what_is_not_ignored_travels(
    code: Path, written: list[str], patterns: dict[str, str], travel: list[str]
) -> None:
    write(code, *written)
    for name, text in patterns.items():
        (code / name).write_text(text)
    assert paths(code) == [*travel, "trial.py"]


def test_an_ignore_file_with_a_wrong_pattern_is_refused_by_its_name(code: Path) -> None:
    (code / ".proctorignore").write_text("!\n")
    with pytest.raises(SubmissionRefused, match=r"\.proctorignore should have one pattern"):
        read_tree(code)


def test_pipes_and_folders_that_are_no_code_are_left_out(code: Path) -> None:
    write(code, "work/e1/metrics.db")
    os.mkfifo(code / "pipe")
    assert [entry.path for entry in read_tree(code, without=[code / "work"]).entries] == ["trial.py"]


@pytest.mark.parametrize("pattern", ["", "!home/\n!home/**\n"])
def test_neither_a_home_nor_an_experiments_folder_travels_wherever_it_lies(code: Path, pattern: str) -> None:
    write(code, "home/control.db", "home/token", "home/experiments/e1/trials/0-a/output/model")
    write(code, "runs/e2/config.json", "runs/e2/metrics.db", "runs/e2/environment.json", "runs/README", "a/config.json")
    (code / ".proctorignore").write_text(pattern)
    assert paths(code) == [".proctorignore", "a", "a/config.json", "runs", "runs/README", "trial.py"]


def test_a_code_directory_that_is_a_home_is_refused(code: Path) -> None:
    write(code, "control.db", "token")
    with pytest.raises(SubmissionRefused, match="is the home of a Proctor manager"):
        read_tree(code)


def test_a_file_that_vanishes_while_the_tree_is_read_is_left_out(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(code, "a/one", "two")
    (code / "three").symlink_to("two")
    scan = os.scandir

    @contextmanager
    def scan_and_remove(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scan(path) as entries:
            found = list(entries)
        for name in ("a/one", "two", "three"):
            (code / name).unlink(missing_ok=True)
        if (code / "a").exists():
            (code / "a").rmdir()
        yield found

    monkeypatch.setattr(os, "scandir", scan_and_remove)
    assert paths(code) == ["a", "trial.py"]


def test_links_inside_the_tree_are_kept_and_absolute_ones_made_relative(code: Path) -> None:
    write(code, "a/b.py")
    (code / "a" / "up").symlink_to("../trial.py")
    (code / "all").symlink_to(code / "a" / "b.py")
    links = {entry.path: entry.target for entry in read_tree(code).entries if entry.target}
    assert links == {"a/up": "../trial.py", "all": "a/b.py"}


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "a/../../outside", "loop"])
def test_a_link_that_leads_out_of_the_tree_is_refused_by_its_name(code: Path, target: str) -> None:
    write(code, "../outside", "a/b.py")
    (code / "loop").symlink_to("..")
    (code / "bad").symlink_to(target)
    with pytest.raises(SubmissionRefused, match=r"the link (bad|loop) of the trial code leads out of"):
        read_tree(code)


def test_a_link_that_leads_out_may_be_left_out(code: Path) -> None:
    (code / "data").symlink_to("/var")
    (code / ".proctorignore").write_text("data\n")
    assert paths(code) == [".proctorignore", "trial.py"]


def test_a_file_that_cannot_be_read_is_refused_by_its_name(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(code, "secret.key")
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path).name != "secret.key")
    with pytest.raises(SubmissionRefused, match=r"the file secret\.key of the trial code .* cannot be read"):
        read_tree(code)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionRefused, match="it does not exist"):
        read_tree(tmp_path / "missing")


def test_one_tree_makes_one_archive_wherever_and_whenever(code: Path, tmp_path: Path) -> None:
    write(code, "a/b.py", "z.sh")
    (code / "z.sh").chmod(0o755)
    other = tmp_path / "elsewhere"
    shutil.copytree(code, other)
    os.utime(other / "trial.py", (1, 1))
    first = build_archive(read_tree(code), tmp_path / "archives")
    second = build_archive(read_tree(other), tmp_path / "others")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert (first.sha256, first.size) == (second.sha256, second.size)


def test_content_names_and_modes_make_another_archive(code: Path, tmp_path: Path) -> None:
    def name() -> str:
        return build_archive(read_tree(code), tmp_path / "archives").name

    names = [name()]
    (code / "trial.py").write_text("print(2)\n")
    names.append(name())
    (code / "trial.py").chmod(0o755)
    names.append(name())
    (code / "trial.py").rename(code / "other.py")
    names.append(name())
    assert len(set(names)) == 4


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40).filter(
            lambda name: name not in {".", "..", *IGNORE_FILES} and len(name.encode()) < 200
        ),
        st.binary(max_size=3000),
        max_size=8,
    )
)
def test_what_is_unpacked_is_what_was_there(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("tree")
    (folder / "code").mkdir()
    for name, data in files.items():
        (folder / "code" / name).write_bytes(data)
    tree = read_tree(folder / "code")
    archive = build_archive(tree, folder / "archives")
    with tarfile.open(archive.path) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    kept = {entry.path for entry in tree.entries}
    found = {path.name: path.read_bytes() for path in (folder / "unpacked").glob("**/*") if path.is_file()}
    assert found == {name: data for name, data in files.items() if name in kept}


async def test_the_archive_is_built_again_only_when_the_tree_has_changed(code: Path, tmp_path: Path) -> None:
    clock = Clock()
    archives = CodeArchives(code, tmp_path / "archives", monotonic=clock)
    first = await archives.newest()
    written = first.path.stat().st_ino
    clock.now = 5.0
    assert await archives.newest() == first
    assert first.path.stat().st_ino == written
    (code / "trial.py").write_text("print(2)\n")
    assert await archives.newest() == first  # looked at a moment ago
    clock.now = 10.0
    second = await archives.newest()
    assert second.name != first.name
    async with archives.hold(first):
        async with archives.hold(second):
            pass
        assert first.path.exists()
    assert [path.name for path in (tmp_path / "archives").iterdir()] == [second.path.name]


async def test_many_who_ask_at_once_get_one_archive(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def count(*arguments: object) -> object:
        built.append(tmp_path)
        return build_archive(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(code_files, "build_archive", count)
    archives = CodeArchives(code, tmp_path / "archives")
    found = await asyncio.gather(*(archives.newest() for _ in range(10)))
    assert len(set(found)) == 1
    assert len(built) == 1


async def test_a_file_that_changes_while_it_is_read_is_read_again(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = iter([2, 1])

    def meddle(tree: object, folder: Path) -> object:
        if next(changes, 0):
            (code / "trial.py").write_text("#" + (code / "trial.py").read_text())
        return build_archive(tree, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(code_files, "build_archive", meddle)
    archives = CodeArchives(code, tmp_path / "archives")
    archive = await archives.newest()
    with tarfile.open(archive.path) as packed:
        data = packed.extractfile("trial.py")
        assert data is not None
        assert data.read() == b"##print(1)\n"
    assert [path.suffix for path in (tmp_path / "archives").iterdir()] == [".gz"]


async def test_an_archive_that_cannot_be_written_says_where(code: Path, tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("in the way")
    with pytest.raises(ServiceUnavailable, match="archives: File exists"):
        await CodeArchives(code, tmp_path / "archives").newest()
