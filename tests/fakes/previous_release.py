"""Homes of previous releases, as a killed manager and a killed machine left them, each with its keeper's one file.

    PYTHONPATH=src:tests python -m fakes.previous_release v0.1.0

records both from a tag or commit (docs/releasing.md). A home holds an experiment that is DONE and one with a
trial whose launch the keeper has written down. Nothing in it names this machine: paths, the interpreter and the boot's
id are replaced by words, and put back where a test unpacks it.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.documentation import ROOT
from fakes.real_manager import RealManager, real_manager

from proctor.trial_keeper.linux.identity import boot_id

FOLDER = ROOT / "tests" / "integration" / "previous_releases"
START, GO = "start", "go"
"""Files beside the code: a trial of the second experiment reports once the first is there, and ends once the second
is."""
REPORTED_BEFORE_GO = 2
NODE = Path("home", "nodes", "local")
_SECRETS = ("token", "readonly.token", "keeper.key", "keepers.pem")
_LEFT_OUT = ("log", "run", "incoming", "dispatcher-path", "manager.json", "manager.lock", *_SECRETS)
_LEFT_OUT_OF_NODE = ("sdk", "secret", "keeper.json", "keeper.lock", "log*", "*.log", "jobs/*.process")
_HOST = '"hostname":"{}"'
_BUILD = """
import sys
from pathlib import Path
try:
    from proctor.training_services.remote.bootstrap.archive import build
except ImportError:
    from proctor.training_services.remote.keeper_archive import build
build(Path(sys.argv[1]))
"""

FINISHED = """
import proctor
x = proctor.get_next_parameter()["x"]
for step in range(3):
    proctor.report_intermediate_result(x * step)
proctor.report_final_result(x)
"""
LAUNCHED = f"""
import os, time, proctor
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.05)
x = proctor.get_next_parameter()["x"]
wait_for({START!r})
for step in range({REPORTED_BEFORE_GO}):
    proctor.report_intermediate_result(step)
wait_for({GO!r})
proctor.report_final_result(x)
"""


@dataclass(frozen=True)
class PreviousRelease:
    """What is recorded of a release; `name` is the tag or commit."""

    name: str

    @property
    def home(self) -> Path:
        return FOLDER / self.name / "home.tar.xz"

    @property
    def keeper(self) -> Path:
        """The one file that is copied to machines."""
        return FOLDER / self.name / "keeper.pyz"

    @property
    def archive_name(self) -> str:
        """What that file is called on machines: as `KeeperArchive.name`."""
        return f"keeper-{hashlib.sha256(self.keeper.read_bytes()).hexdigest()[:20]}.pyz"

    @property
    def facts(self) -> Path:
        """What a test compares with, as JSON."""
        return FOLDER / self.name / "facts.json"


def recorded_releases() -> list[PreviousRelease]:
    """All that are recorded."""
    return [PreviousRelease(path.name) for path in sorted(FOLDER.iterdir())]


def record(name: str) -> None:
    """Record the fixture from a tag or commit of this repository."""
    release = PreviousRelease(name)
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"})  # what trials are given
    with tempfile.TemporaryDirectory() as temporary:
        source, folder = Path(temporary, "source"), Path(temporary, "fixture")
        archive = _git("archive", name)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(source, filter="tar")
        environment = {"PYTHONPATH": str(source / "src")}
        command = [sys.executable, "-P", "-c", _BUILD, f"{temporary}/keeper"]
        subprocess.run(command, env={**os.environ, **environment}, check=True)
        with real_manager(folder, environment=environment) as manager:
            facts = _run_experiments(manager)
        _clean(folder)
        facts |= _versions(folder, facts["finished"])
        relocate(folder, {text: word for word, text in _words(folder, manager.tag).items()})
        _require_neutral(folder)
        release.home.parent.mkdir(parents=True, exist_ok=True)
        (keeper,) = Path(temporary, "keeper").glob("*.pyz")
        shutil.copyfile(keeper, release.keeper)
        commit = _git("rev-parse", f"{name}^{{commit}}").decode().strip()
        release.facts.write_text(json.dumps({"release": name, "commit": commit, **facts}, indent=1) + "\n")
        with tarfile.open(release.home, "w:xz", preset=9) as tar:
            for name in ("code", "home"):
                tar.add(folder / name, name, filter=_of_no_user)
    print(
        f"{release.home.stat().st_size} bytes of a home, {release.keeper.stat().st_size} of its keeper, from {commit}"
    )


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def _of_no_user(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    return entry.replace(uid=0, gid=0, uname="", gname="", deep=False)


def _run_experiments(manager: RealManager) -> dict[str, Any]:
    """An experiment to its end, and another one until its first trial waits for START; what a test compares with."""
    finished = manager.create(
        FINISHED,
        experimentName="finished",
        maxTrialNumber=4,
        objective=None,  # not every release knows the key
        tuner={"name": "TPE", "classArgs": {"optimize_mode": "maximize"}},
        assessor={"name": "Medianstop", "classArgs": {"optimize_mode": "maximize"}},
    )
    manager.until_status(finished, "DONE")
    launched = manager.create(LAUNCHED, experimentName="launched", maxTrialNumber=2, objective=None)
    (trial,) = manager.until(
        lambda: [row for row in manager.trials(launched) if row["status"] == "RUNNING"], "the trial that waits"
    )
    values = {row["id"]: row["final_value"] for row in manager.trials(finished)}
    return {"finished": finished, "values": values, "launched": launched, "trial": trial["id"]}


def _versions(folder: Path, experiment_id: str) -> dict[str, int]:
    """Of the schemas."""
    found = {}
    for schema, file in (("control", "control.db"), ("metrics", f"experiments/{experiment_id}/metrics.db")):
        with closing(sqlite3.connect(folder / "home" / file)) as database:
            found[schema] = int(database.execute("PRAGMA user_version").fetchone()[0])
    return found


def _clean(folder: Path) -> None:
    """Leave what a home is; of the job that was launched, leave that it was to be launched."""
    for top, patterns in ((folder / "home", _LEFT_OUT), (folder / NODE, _LEFT_OUT_OF_NODE)):
        for path in [found for pattern in patterns for found in top.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for record_file in (folder / NODE / "jobs").glob("*.json"):
        Path(json.loads(record_file.read_text())["launch"]["directory"], "exit.json").unlink(missing_ok=True)


def _require_neutral(folder: Path) -> None:
    """Raise where something names this machine."""
    traces = [f'"{socket.gethostname()}"', str(ROOT), sys.prefix, str(folder)]
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if found := [trace for trace in traces if trace.encode() in data]:
            raise SystemExit(f"{path} names this machine: {found}")


def unpack(release: PreviousRelease, folder: Path, tag: str) -> dict[str, Any]:
    """The recorded home of a release in `folder`/home, with the code of its trials in `folder`/code, as if they were
    made there; returns what is known of it.

    :param tag: what the processes of its trials are found by (`chaos.processes.TAG`).
    """
    with tarfile.open(release.home) as tar:
        tar.extractall(folder, filter="data")
    relocate(folder, _words(folder, tag))
    (folder / NODE / "secret").write_text(secrets.token_urlsafe(32))
    facts: dict[str, Any] = json.loads(release.facts.read_text(encoding="utf-8"))
    return facts


def relocate(folder: Path, words: Mapping[str, str]) -> None:
    """Replace words in all files and in all texts of all databases below."""
    for path in folder.rglob("*"):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database, database:
                for table, column in _text_columns(database):
                    for old, new in words.items():
                        database.execute(f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, ?)', (old, new))
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif path.is_file() and not path.is_symlink() and not path.name.endswith(("-wal", "-shm")):
            text = path.read_text(encoding="utf-8")
            for old, new in words.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")


def _words(folder: Path, tag: str) -> dict[str, str]:
    """What stands in the recorded files for what differs each time. An interpreter may be below the folder."""
    words = {"@PYTHON@": sys.executable, "@FOLDER@": str(folder), "@BOOT@": boot_id(), "@TAG@": tag}
    return {**words, _HOST.format("@HOST@"): _HOST.format(socket.gethostname())}


def _text_columns(database: sqlite3.Connection) -> list[tuple[str, str]]:
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = [(table, row) for table in tables for row in database.execute(f'PRAGMA table_info("{table}")')]
    return [(table, row[1]) for table, row in columns if row[2] == "TEXT"]


if __name__ == "__main__":
    record(sys.argv[1])
