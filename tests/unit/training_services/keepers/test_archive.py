"""The archive holds what it must, nothing else, and says clearly when it cannot be built."""

import ast
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from proctor.sdk.bundle import build_bundle, bundle_files
from proctor.training_services.keepers import archive
from proctor.training_services.keepers.archive import ArchiveNotBuilt, archive_files, build

ROOT = Path(__file__).parents[5]


def test_the_same_files_give_the_same_bytes_under_a_name_that_holds_their_hash(tmp_path: Path) -> None:
    first, second = build(tmp_path / "a"), build(tmp_path / "b")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.path.name == first.name == f"keeper-{first.sha256[:20]}.pyz"


@pytest.mark.slow
def test_what_is_compiled_has_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from proctor.training_services.keepers import archive; "
    code += "print(archive.build(Path(sys.argv[1]), is_compiled=True).sha256)"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, str(tmp_path / "b")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == build(tmp_path / "a", is_compiled=True).sha256


def modules_that_are_compiled(keeper: Path) -> set[str]:
    """Those of the keeper that its start compiles."""
    code = (
        "import runpy, sys\n"
        "found = set()\n"
        "sys.addaudithook(lambda event, given: event == 'compile' and found.add(str(given[1])))\n"
        "path, sys.argv = sys.argv[1], [sys.argv[1], 'pod', '--help']\n"
        "try:\n"
        "    runpy.run_path(path, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "print(*found, sep='\\n', file=sys.stderr)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(keeper)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "usage:" in done.stdout
    return {line for line in done.stderr.splitlines() if f"{keeper}/proctor/" in line}


def test_the_keeper_of_a_pod_fits_into_a_config_map(tmp_path: Path) -> None:
    """The API server would refuse more than 1 MiB, and no trial of platform kubernetes would start. In base64 it is a
    third longer; aiohttp warns of a body of more than 1 MiB."""
    assert build(tmp_path, is_compiled=True).path.stat().st_size < 0.74 * 2**20


@pytest.mark.slow
def test_the_keeper_of_a_pod_starts_without_being_compiled_and_under_another_python_from_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert modules_that_are_compiled(build(tmp_path / "same", is_compiled=True).path) == set()
    monkeypatch.setattr(archive, "MAGIC_NUMBER", b"\0\0\r\n")
    other = build(tmp_path / "other", is_compiled=True).path
    assert f"{other}/proctor/trial_keeper/pod.py" in modules_that_are_compiled(other)


def test_what_is_there_is_used_again_what_is_damaged_or_old_replaced(tmp_path: Path) -> None:
    archive = build(tmp_path)
    before = archive.path.stat()
    assert build(tmp_path) == archive
    assert archive.path.stat().st_mtime_ns == before.st_mtime_ns
    archive.path.write_bytes(b"damaged")
    (tmp_path / "keeper-0123.pyz").touch()
    assert build(tmp_path) == archive
    assert hashlib.sha256(archive.path.read_bytes()).hexdigest() == archive.sha256
    assert os.listdir(tmp_path) == [archive.name]


def test_it_holds_the_keeper_what_trials_import_and_nothing_else_of_the_managers() -> None:
    names = set(archive_files())
    strangers = {
        name
        for name in names
        if name not in ("__main__.py", "pynvml.py")
        and not name.startswith(("proctor/sdk/", "proctor/trial_keeper/"))
        and name not in ("proctor/__init__.py", "proctor/py.typed")
    }
    assert strangers == set()
    assert not any(name.startswith(("proctor/sdk/client/", "proctor/manager/")) for name in names)
    keeper = {f"proctor/trial_keeper/{path.name}" for path in (ROOT / "trial_keeper").glob("*.py")}
    assert keeper <= names


def test_a_trial_finds_the_same_bundle_whether_it_comes_from_the_archive_or_from_here(tmp_path: Path) -> None:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from proctor.sdk import bundle; "
        "print(json.dumps([bundle.__file__, bundle.build_bundle(sys.argv[2])]))"
    )
    archive = build(tmp_path / "archive")
    command = [sys.executable, "-I", "-S", "-c", code, str(archive.path), str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded_from, bundle = json.loads(done.stdout)
    assert loaded_from.startswith(str(archive.path))
    assert Path(bundle).name == Path(build_bundle(str(tmp_path / "here"))).name
    assert {str(path.relative_to(bundle)) for path in Path(bundle).rglob("*.py")} <= set(bundle_files())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in archive_files() if name.endswith(".py")))
def test_each_module_parses_on_the_oldest_python(name: str) -> None:
    ast.parse(archive_files()[name], name, feature_version=(3, 10))


def test_what_the_archive_imports_of_ours_is_in_it(tmp_path: Path) -> None:
    content = archive_files()
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in content}
    for name, source in content.items():
        if name.startswith("proctor/trial_keeper/"):
            tree = ast.parse(source)
            ours = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
            missing = {module for module in ours if module.startswith("proctor.")} - modules
            assert not missing, f"{name} imports {missing}"


def test_all_entries_are_dated_alike_and_sorted(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path).path) as archive:
        entries = archive.infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)


def fake_distribution(folder: Path, *, tag: str = "py3-none-any", metadata: str = "", record: str = "") -> Distribution:
    info = folder / "nvidia_ml_py-13.0.dist-info"
    info.mkdir()
    (folder / "pynvml.py").write_text("x = 1\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-ml-py\nVersion: 13.0\n{metadata}")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
    (info / "RECORD").write_text(record or "pynvml.py,,\nexample.py,,\n")
    return PathDistribution(info)


def build_with(monkeypatch: pytest.MonkeyPatch, found: Distribution) -> dict[str, bytes]:
    monkeypatch.setattr(archive, "distribution", lambda name: found)
    return archive_files()


@pytest.mark.parametrize("metadata", ["", "Requires-Python: >=3.6\n", "Requires-Dist: pytest; extra == 'test'\n"])
def test_only_the_module_is_taken_from_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    content = build_with(monkeypatch, fake_distribution(tmp_path, metadata=metadata))
    assert content["pynvml.py"] == b"x = 1\n"
    assert "example.py" not in content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tag": "cp311-cp311-manylinux_2_17_x86_64"}, r"should be pure Python .* found tags \['cp311-cp311-manylinux"),
        ({"metadata": "Requires-Python: >=3.12\n"}, "should run on Python 3.10, .* says it requires >=3.12"),
        ({"metadata": "Requires-Python: newest\n"}, "says it requires newest"),
        ({"metadata": "Requires-Dist: numpy\n"}, r"should need no other package, found \['numpy'\]"),
        ({"record": "other.py,,\n"}, "does not contain pynvml"),
    ],
)
def test_what_cannot_travel_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(ArchiveNotBuilt, match=said):
        build_with(monkeypatch, fake_distribution(tmp_path, **changes))
