"""The folder that is put first on a trial's PYTHONPATH."""

import os
import threading
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import proctor
from proctor.sdk.bundle import build_bundle, bundle_files


def tree(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_it_holds_the_trial_side_and_the_nni_shim_and_nothing_of_the_control_side(tmp_path: Path) -> None:
    found = tree(build_bundle(str(tmp_path)))
    assert found == bundle_files()
    expected = {"__init__.py", "sdk/trial.py", "sdk/space/__init__.py", "sdk/pytorch/__init__.py", "sdk/pytorch/run.py"}
    assert {f"proctor/{name}" for name in expected} | {"nni/__init__.py"} <= set(found)
    assert not any("client" in name or "manager" in name for name in found)


def test_it_is_compiled_only_where_more_than_one_trial_will_use_it(tmp_path: Path) -> None:
    compiled = Path(build_bundle(str(tmp_path / "machine")))
    assert list(compiled.rglob("sdk/__pycache__/trial.*.pyc"))
    bare = Path(build_bundle(str(tmp_path / "pod"), is_compiled=False))
    assert bare.name == compiled.name
    assert not list(bare.rglob("*.pyc"))


def test_building_again_gives_the_same_folder_and_touches_nothing(tmp_path: Path) -> None:
    first = build_bundle(str(tmp_path))
    before = os.stat(first).st_mtime_ns
    assert build_bundle(str(tmp_path)) == first
    assert os.stat(first).st_mtime_ns == before
    assert os.listdir(tmp_path) == [os.path.basename(first)]


@pytest.mark.parametrize("damage", ["missing", "empty", "only a folder", "a file"])
def test_a_damaged_folder_is_replaced(tmp_path: Path, damage: str) -> None:
    path = Path(build_bundle(str(tmp_path)))
    if damage == "missing":
        (path / "nni" / "utils.py").unlink()
    elif damage == "empty":
        (path / "proctor" / "sdk" / "trial.py").write_bytes(b"")
    else:
        path.rename(tmp_path.parent / f"{damage} moved away")
        path.mkdir() if damage == "only a folder" else path.touch()
    assert build_bundle(str(tmp_path)) == str(path)
    assert tree(str(path)) == bundle_files()
    assert os.listdir(tmp_path) == [path.name]


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f".unfinished-{os.uname().nodename}-999999999").mkdir()
    path = build_bundle(str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_builders_that_start_together_agree(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def build(_: int) -> str:
        barrier.wait()
        return build_bundle(str(tmp_path))

    with ThreadPoolExecutor(6) as builders:
        (built,) = set(builders.map(build, range(6)))
    assert tree(built) == bundle_files()
    assert os.listdir(tmp_path) == [os.path.basename(built)]


def test_other_content_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_bundle(str(tmp_path))
    changed = {**bundle_files(), "nni/__init__.py": b"# newer\n"}
    monkeypatch.setattr("proctor.sdk.bundle.bundle_files", lambda: changed)
    second = build_bundle(str(tmp_path))
    assert second != first
    assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(first), os.path.basename(second)])


def test_the_version_in_the_code_is_that_of_the_package() -> None:
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert settings["project"]["version"] == proctor.__version__


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = proctor.nonsense  # type: ignore[attr-defined]


def test_it_can_be_built_from_a_zip_archive(tmp_path: Path, bundle_from_zip: str) -> None:
    assert tree(bundle_from_zip) == bundle_files()


@pytest.fixture
def bundle_from_zip(tmp_path: Path) -> str:
    """The path of a bundle built by a process that has this package only as a zip archive, as a keeper may."""
    import subprocess
    import sys

    source = Path(proctor.__path__[0])
    with zipfile.ZipFile(tmp_path / "keeper.zip", "w") as archive:
        for name in ("__init__.py", "py.typed"):
            archive.write(source / name, f"proctor/{name}")
        for path in (source / "sdk").rglob("*"):
            if path.suffix == ".py":
                archive.write(path, f"proctor/{path.relative_to(source)}")
    code = f"from proctor.sdk.bundle import build_bundle; print(build_bundle({str(tmp_path / 'bundles')!r}))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "keeper.zip")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()
