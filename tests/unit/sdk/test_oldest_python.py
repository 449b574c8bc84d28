"""The trial side and the keeper stay on Python 3.10 and on what may travel with them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from proctor.sdk.bundle import bundle_files

ROOT = Path(__file__).parents[3]
OLDEST = (3, 10)
# Every third-party import must be named here with the file that may have it.
ALLOWED = {"nni/utils.py": {"schema"}}
TRAINER_ALLOWED = {"torch", "numpy", "typing_extensions"}
ALLOWED |= {f"proctor/{path.relative_to(ROOT)}": TRAINER_ALLOWED for path in (ROOT / "sdk" / "pytorch").rglob("*.py")}
ALLOWED["proctor/sdk/pytorch/callbacks/tensorboard.py"] = {"tensorboard", "torch"}
ALLOWED["proctor/sdk/pytorch/lightning.py"] = {"lightning", "pytorch_lightning"}
ALLOWED["proctor/sdk/pytorch/huggingface.py"] = {"transformers"}
ALLOWED["proctor/sdk/checkpoints/storage.py"] = {"fsspec"}
KEEPER_ALLOWED = {"pynvml"}


@cache
def python_files() -> dict[str, tuple[bytes, set[str]]]:
    """Source and allowed third-party imports by name."""
    found = {name: (data, ALLOWED.get(name, set())) for name, data in bundle_files().items() if name.endswith(".py")}
    for path in sorted((ROOT / "trial_keeper").rglob("*.py")):
        found[str(path.relative_to(ROOT))] = (path.read_bytes(), KEEPER_ALLOWED)
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.slow
def test_each_file_parses_on_the_oldest_python_and_imports_only_what_travels_with_it() -> None:
    for name, (source, allowed) in python_files().items():
        tree = ast.parse(source, name, feature_version=OLDEST)
        known = set(sys.stdlib_module_names) | {"proctor", "nni"} | allowed
        strangers = {module for module in imported(tree) if module.partition(".")[0] not in known}
        assert not strangers, f"{name} imports {strangers}, which a trial's interpreter may not have"


def test_what_the_trial_side_imports_of_ours_is_in_the_bundle() -> None:
    files = bundle_files()
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    for name, source in files.items():
        if name.startswith("proctor/sdk/") and name.endswith(".py"):
            ours = {module for module in imported(ast.parse(source)) if module.startswith("proctor.")}
            assert ours <= modules, f"{name} imports what the bundle lacks"


def test_the_check_finds_a_newer_statement() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("try:\n    pass\nexcept* ValueError:\n    pass\n", feature_version=OLDEST)


def test_the_linter_finds_no_newer_syntax() -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--target-version",
        "py310",
        "--select",
        "E9",
        "sdk",
        "trial_keeper",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def check_types(folder: Path) -> "subprocess.CompletedProcess[str]":
    settings = folder / "mypy.ini"
    settings.write_text(
        "[mypy]\npython_version = 3.10\nincremental = False\n"
        "[mypy-pynvml.*,schema.*,nni.runtime.*,proctor.sdk.client.*]\nignore_missing_imports = True\n"
        "[mypy-torch.*,tensorboard.*,numpy.*,lightning.*,pytorch_lightning.*,transformers.*]\n"
        "ignore_missing_imports = True\nfollow_imports = skip\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "-p", "proctor"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_type_checker_finds_no_newer_library_call(tmp_path: Path) -> None:
    """Types of the standard library as it was: `tomllib`, `asyncio.timeout`, `enum.StrEnum` and the like are errors."""
    for name, (source, _) in python_files().items():
        target = tmp_path / (f"proctor/{name}" if name.startswith("trial_keeper/") else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source)
    done = check_types(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.thorough
def test_the_type_checker_would_find_a_newer_library_call(tmp_path: Path) -> None:
    (tmp_path / "proctor").mkdir()
    newer = ("import tomllib", "from enum import StrEnum", "import asyncio; asyncio.timeout(1)")
    (tmp_path / "proctor" / "__init__.py").write_text("\n".join(newer))
    done = check_types(tmp_path)
    assert {int(found) for found in re.findall(r"^proctor/__init__\.py:(\d+): error:", done.stdout, re.M)} == {1, 2, 3}
