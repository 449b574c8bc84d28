"""Homes of previous releases, as a killed manager and a killed machine left them, each with its keeper's one file.

    PYTHONPATH=src:tests python -m fakes.previous_release v0.1.0

records both from a tag or commit (docs/releasing.md). A home holds an experiment that is DONE, one with a trial whose
launch the keeper has written down, and one that is half done under each trial scheduler, with what that release decides
in it where nothing disturbs it. Nothing in it names this machine: paths, the interpreter and the boot's
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.documentation import ROOT
from fakes.real_manager import RealManager, real_manager

from proctor.manager.process.home_place import identify
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
from proctor.training_services.keepers.archive import build
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

SCHEDULED = f"""
import os, sys, time, proctor
last, before_go, stopped = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
parameters, number = proctor.get_next_parameter(), str(proctor.get_sequence_id())
with open("starts-" + proctor.get_experiment_id(), "a+") as file:
    file.write(os.environ["PROCTOR_JOB_ID"] + "\\n")
    file.seek(0)
    started = len(set(file.read().split()))
while started > before_go and not os.path.exists({GO!r}):
    time.sleep(0.05)
step, saved = 0, os.environ["PROCTOR_OUTPUT_DIR"] + "/saved"
os.makedirs(saved, exist_ok=True)
if found := proctor.get_checkpoint():
    step = int(open(found + "/step").read())
def value():
    return parameters["x"] * step + parameters["n"] if "x" in parameters else 0.1
while step < last and not proctor.should_stop():
    step += 1
    with open(saved + "/step", "w") as file:
        file.write(str(step))
    proctor.report(value(), step=step, checkpoint=saved if "x" in parameters else None)
began = time.monotonic()
while not proctor.should_stop() and (number in stopped or stopped == ["unknown"] and time.monotonic() < began + 5):
    time.sleep(0.05)
if step == last and not proctor.should_stop():
    proctor.report_final_result(value())
"""
"""Continues from its checkpoint. Once so many jobs of its experiment have started, it waits for GO. Under median
stopping, which does not hold up reports, the trials that are to be stopped wait for that."""
_STEPS = {"time_attr": "training_iteration"}
_SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "randint", "_value": [1, 4]}}


@dataclass(frozen=True)
class Scheduled:
    """An experiment under a trial scheduler whose rules have changed since: by those of now it would end otherwise."""

    class_args: dict[str, Any]
    trials: int
    last: int
    """The step at which a trial ends."""
    tuner: dict[str, Any] = field(default_factory=lambda: {"name": "Random"})
    space: dict[str, Any] = field(default_factory=lambda: _SPACE)


SCHEDULERS = {
    "ASHA": Scheduled(
        {"type": "promotion", "max_t": 9, "reduction_factor": 3, **_STEPS},
        trials=8,
        last=9,
        tuner={"name": "TPE", "classArgs": {"tpe_args": {"n_startup_jobs": 2}}},
    ),
    "HyperBand": Scheduled({"max_t": 10, "reduction_factor": 3, **_STEPS}, trials=9, last=10),
    "PBT": Scheduled({"perturbation_interval": 2, "population_size": 4, **_STEPS}, trials=4, last=8),
    "MedianStopping": Scheduled(
        {"grace_period": 3, "min_samples_required": 2, **_STEPS},
        trials=6,
        last=60,
        space={"y": _SPACE["x"]},
    ),
}


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

    def read_facts(self) -> dict[str, Any]:
        """The same."""
        facts: dict[str, Any] = json.loads(self.facts.read_text(encoding="utf-8"))
        return facts


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
    facts = {"finished": finished, "values": values, "launched": launched, "trial": trial["id"]}
    return facts | {"half_done": _run_half(manager)}


def _run_half(manager: RealManager) -> dict[str, Any]:
    """An experiment under each trial scheduler until half of its jobs have started, with what was decided in one that
    was not disturbed, by its name."""
    undisturbed = {name: _create_scheduled(manager, name, before_go=10**6, stopped=None) for name in SCHEDULERS}
    found: dict[str, Any] = {}
    starts: dict[Path, int] = {}
    for name, experiment_id in undisturbed.items():
        manager.until_status(experiment_id, "DONE")
        decided = decisions(manager, experiment_id)
        half = sum(len(trial["jobs"]) for trial in decided) // 2
        stopped = [number for number, trial in enumerate(decided) if trial["status"] == "EARLY_STOPPED"]
        half_done = _create_scheduled(manager, name, before_go=half, stopped=stopped)
        starts[manager.code / f"starts-{half_done}"] = half
        found[half_done] = {"scheduler": name, "decisions": decided}
        manager.client.stop_experiment(experiment_id)
        manager.until_status(experiment_id, "STOPPED")
        manager.client.delete_experiment(experiment_id)
        (manager.code / f"starts-{experiment_id}").unlink()
    manager.poll_for(
        lambda: all(path.exists() and len(set(path.read_text().split())) > half for path, half in starts.items()),
        "half of the jobs",
    )
    manager.poll_for(lambda: len(list((manager.home / "nodes/local/jobs").glob("*.json"))) == 1 + len(starts), "ends")
    return found


def _create_scheduled(manager: RealManager, name: str, *, before_go: int, stopped: list[int] | None) -> str:
    """:param stopped: the numbers of the trials that are to be stopped; None: that is to be found out."""
    scheduled = SCHEDULERS[name]
    if name != "MedianStopping":
        stopped = []
    return manager.create(
        SCHEDULED,
        scheduled.last,
        before_go,
        "unknown" if stopped is None else ",".join(map(str, ["none", *stopped])),
        maxTrialNumber=scheduled.trials,
        searchSpace=scheduled.space,
        seed=7,
        tuner=scheduled.tuner,
        trialScheduler={"name": name, "classArgs": scheduled.class_args},
    )


def decisions(manager: RealManager, experiment_id: str) -> list[dict[str, Any]]:
    """What an experiment under a trial scheduler has come to: of each trial its parameters, status and result, and of
    each of its jobs how it ended, from which step it continued, and why it was ended."""
    rows = manager.trials(experiment_id)

    def with_numbers(text: str) -> str:
        for row in rows:
            text = text.replace(row["id"], f"#{row['sequence_id']}")
        return text

    return [
        {
            "parameters": trial["parameters"],
            "status": trial["status"],
            "value": trial["final_value"],
            "jobs": [
                [job["end_reason"], job["resumed_from_step"], with_numbers(job["detail"])]
                for job in manager.client.jobs(trial["id"])
            ],
        }
        for trial in rows
    ]


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
    _own(folder / "home")
    (folder / NODE / "secret").write_text(secrets.token_urlsafe(32))
    return release.read_facts()


def _own(home: Path) -> None:
    """Let the home know its manager.lock, if its release knew how."""
    with closing(sqlite3.connect(home / "control.db")) as database, database:
        if ("home", "lock") in _text_columns(database):
            lock = home / "manager.lock"
            lock.touch(mode=0o600)
            found = identify(lock)
            database.execute("UPDATE home SET lock = ?", (f"{found.inode}:{found.born}",))


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
