"""A job's directory and a real interpreter to run trials in it, the oldest supported one included."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proctor.sdk.bundle import build_bundle
from proctor.sdk.protocol import trial_environment

OLDEST = "3.10"


def find_interpreter(version: str) -> str | None:
    """A CPython of that version on PATH or among pyenv's, else None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for candidate in filter(None, candidates):
        probe = subprocess.run([candidate, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
        if probe.returncode == 0 and probe.stdout.startswith(f"{version}."):
            return str(candidate)
    return None


@pytest.fixture(scope="session", params=["this", OLDEST])
def interpreter(request: pytest.FixtureRequest) -> str:
    """The Python that runs the trial."""
    if request.param == "this":
        return sys.executable
    found = find_interpreter(OLDEST)
    return found or pytest.skip(f"no Python {OLDEST} on PATH or among pyenv's versions")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_bundle(str(tmp_path_factory.mktemp("bundles")))


@dataclass
class Job:
    """A trial job as the keeper lays it out."""

    folder: Path
    interpreter: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def command(self, script: str) -> list[str]:
        path = self.folder / "trial.py"
        path.write_text(script)
        return [self.interpreter, str(path)]

    def run(self, script: str, expect: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(script), env=self.environment, capture_output=True, text=True, timeout=120, **options
        )
        assert expect is None or done.returncode == expect, done.stderr
        return done

    def lines(self) -> list[str]:
        return [line for line in self.journal.read_text().split("\n") if line]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def values(self, kind: str = "intermediate") -> list[Any]:
        return [record["value"] for record in self.records() if record["kind"] == kind]


@pytest.fixture
def make_job(tmp_path: Path, interpreter: str, bundle: str) -> Callable[..., Job]:
    def make(**more: str) -> Job:
        folder = tmp_path / "job"
        (folder / "output").mkdir(parents=True, exist_ok=True)
        parameters = {"parameter_id": 3, "parameter_source": "algorithm", "parameters": {"lr": 0.1, "näme": "x"}}
        (folder / "parameter.json").write_text(json.dumps({**parameters, "parameter_index": 0}))
        given = trial_environment(
            experiment_id="Ab3dE5f7",
            trial_id="tRiAl",
            job_id="tRiAl-1",
            sequence_id=7,
            job_directory=str(folder),
            code_directory=str(folder),
            platform="local",
        )
        inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": bundle, "PYTHONWARNINGS": "error"}
        return Job(folder, interpreter, {**inherited, **given, **more})

    return make


@pytest.fixture
def job(make_job: Callable[..., Job]) -> Job:
    return make_job()
