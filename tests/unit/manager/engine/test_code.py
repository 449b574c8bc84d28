"""Fingerprints and frozen copies of the user's code."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from proctor.manager.engine.code import SNAPSHOT_FOLDER, freeze, take_fingerprint
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import events, jobs
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step


def code_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "trial.py").write_text("print(1)\n")
    (folder / "package" / "model.py").write_text("x = 1\n")
    os.symlink("nowhere", folder / "dangling")
    return folder


def test_a_fingerprint_changes_with_the_files_and_not_with_caches(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    before = take_fingerprint(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "trial.pyc").write_bytes(b"1")
    assert take_fingerprint(folder) == before
    (folder / "package" / "model.py").write_text("x = 22\n")
    assert take_fingerprint(folder) != before


def test_results_that_a_trial_writes_beside_itself_are_no_change_of_the_code(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    before = take_fingerprint(folder)
    (folder / "results.json").write_text("{}")
    (folder / "model.pt").write_bytes(b"1")
    assert take_fingerprint(folder) == before


def test_a_fingerprint_of_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    assert take_fingerprint(tmp_path / "nowhere") == take_fingerprint(tmp_path / "nor here")


def test_a_frozen_copy_keeps_links_and_leaves_the_experiment_itself_out(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    experiment = folder / "experiment"
    experiment.mkdir()
    freeze(folder, experiment)
    copied = {str(path.relative_to(experiment / SNAPSHOT_FOLDER)) for path in (experiment / "code").rglob("*")}
    assert copied == {"trial.py", "package", "package/model.py", "dangling"}


def test_a_frozen_copy_holds_no_home_and_no_other_experiment(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    for path in ("home/control.db", "home/token", "home/experiments/e1/code/trial.py", "home/nodes/local/secret"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    for path in ("runs/e2/config.json", "runs/e2/metrics.db", "runs/e2/trials/0-a/code.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    before = take_fingerprint(folder)
    experiment = folder / "home" / "experiments" / "e3"
    experiment.mkdir()
    freeze(folder, experiment)
    copied = {str(path.relative_to(experiment / SNAPSHOT_FOLDER)) for path in (experiment / "code").rglob("*")}
    assert copied == {"trial.py", "package", "package/model.py", "dangling", "runs"}
    assert take_fingerprint(folder) == before


def test_a_home_is_not_frozen_as_code(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    (folder / "control.db").touch()
    (folder / "token").touch()
    (folder / "experiments" / "e1").mkdir(parents=True)
    with pytest.raises(OSError, match="is the home of a Proctor manager"):
        freeze(folder, folder / "experiments" / "e1")
    assert not (folder / "experiments" / "e1" / SNAPSHOT_FOLDER).exists()


def test_a_job_keeps_its_codes_fingerprint_and_a_change_is_shown(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            (folder / "trial.py").write_text("print(22)\n")
        yield Final(10.0, 1.0)

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            config = {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": "python trial.py",
                "trialCodeDirectory": str(folder),
                "trialConcurrency": 1,
                "maxTrialNumber": 2,
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
            row = await manager.create_experiment(config=config, directory=str(tmp_path))
            await simulation.ended(manager, row.id)
            happened = await manager.control.read(lambda c: events.after(c, 0, experiment_id=row.id, limit=1000))
            (notice,) = [event for event in happened if event.kind == "notice"]
            assert "has changed" in notice.data["text"]
            first = await manager.control.read(lambda c: jobs.get(c, f"{notice.trial_id}.1"))
            assert first.code_fingerprint == take_fingerprint(folder)

    run_virtual(main)


def test_a_snapshot_is_what_trials_run(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    seen: list[str] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        seen.append((Path(form.code_directory) / "trial.py").read_text())
        (folder / "trial.py").write_text("print(2)\n")
        yield Final(10.0, 1.0)

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            config = {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": "python trial.py",
                "trialCodeDirectory": str(folder),
                "codeSnapshot": True,
                "trialConcurrency": 1,
                "maxTrialNumber": 3,
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
            row = await manager.create_experiment(config=config, directory=str(tmp_path))
            await simulation.ended(manager, row.id)

    run_virtual(main)
    assert seen == ["print(1)\n"] * 3
