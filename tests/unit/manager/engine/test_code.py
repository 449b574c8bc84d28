"""Fingerprints and frozen copies of the user's code."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from fakes.descriptors import no_descriptors
from fakes.small_experiments import Scene, play, played

from proctor.manager.clock import LoopClock
from proctor.manager.engine.code import POLL_INTERVAL_SECONDS, SNAPSHOT_FOLDER, CodeWatch, freeze, take_fingerprint
from proctor.manager.engine.manager import Manager
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step


def code_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "package").mkdir(parents=True)
    (folder / "trial.py").write_text("print(1)\n")
    (folder / "package" / "model.py").write_text("x = 1\n")
    os.symlink("nowhere", folder / "dangling")
    return folder


def frozen(folder: Path, experiment: Path) -> set[str]:
    """What a frozen copy of the code of an experiment holds."""
    experiment.mkdir()
    freeze(folder, experiment)
    copy = experiment / SNAPSHOT_FOLDER
    return {str(path.relative_to(copy)) for path in copy.rglob("*")}


def test_a_fingerprint_changes_with_the_files_and_not_with_caches_or_results(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    before = take_fingerprint(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "trial.pyc").write_bytes(b"1")
    (folder / "results.json").write_text("{}")
    (folder / "model.pt").write_bytes(b"1")
    assert take_fingerprint(folder) == before
    (folder / "package" / "model.py").write_text("x = 22\n")
    assert take_fingerprint(folder) != before


def test_a_fingerprint_of_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    assert take_fingerprint(tmp_path / "nowhere") == take_fingerprint(tmp_path / "nor here")


def test_code_that_cannot_be_looked_at_has_not_changed(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)

    async def look(loop: VirtualTimeLoop) -> None:
        watch = CodeWatch(folder, LoopClock())
        before = await watch.fingerprint()
        assert before == take_fingerprint(folder)
        await asyncio.sleep(2 * POLL_INTERVAL_SECONDS)
        with no_descriptors():
            with pytest.raises(OSError, match="Too many open files"):
                take_fingerprint(folder)
            assert await watch.fingerprint() == before
            assert await CodeWatch(folder, LoopClock()).fingerprint() is None

    run_virtual(look)


def test_a_frozen_copy_keeps_links_and_leaves_the_experiment_itself_out(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    expected = {"trial.py", "package", "package/model.py", "dangling"}
    assert frozen(folder, folder / "experiment") == expected


def test_a_frozen_copy_holds_no_home_and_no_other_experiment(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    for path in (
        *("home/control.db", "home/token", "home/experiments/e1/code/trial.py", "home/nodes/local/secret"),
        *("runs/e2/config.json", "runs/e2/metrics.db", "runs/e2/trials/0-a/code.py"),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    before = take_fingerprint(folder)
    expected = {"trial.py", "package", "package/model.py", "dangling", "runs"}
    assert frozen(folder, folder / "home" / "experiments" / "e3") == expected
    assert take_fingerprint(folder) == before


def test_a_home_is_not_frozen_as_code(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    (folder / "control.db").touch()
    (folder / "token").touch()
    (folder / "experiments" / "e1").mkdir(parents=True)
    with pytest.raises(OSError, match="is the home of a Proctor manager"):
        freeze(folder, folder / "experiments" / "e1")
    assert not (folder / "experiments" / "e1" / SNAPSHOT_FOLDER).exists()


@played(play)
async def test_a_job_keeps_its_codes_fingerprint_and_a_change_is_shown(
    scene: Scene, manager: Manager, /, tmp_path: Path
) -> None:
    folder = code_folder(tmp_path)
    before = take_fingerprint(folder)

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            (folder / "trial.py").write_text("print(22)\n")
        yield Final(10.0, 1.0)

    await scene.run(script, trialCodeDirectory=str(folder), maxTrialNumber=2)
    (notice,) = await scene.notices()
    assert "has changed" in notice
    fingerprints = [(await scene.jobs(number))[0].code_fingerprint for number in range(2)]
    assert fingerprints == [before, take_fingerprint(folder)]


@played(play)
async def test_a_snapshot_is_what_trials_run(scene: Scene, manager: Manager, /, tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    seen: list[str] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        seen.append((Path(form.code_directory) / "trial.py").read_text())
        (folder / "trial.py").write_text("print(2)\n")
        yield Final(10.0, 1.0)

    await scene.run(script, trialCodeDirectory=str(folder), codeSnapshot=True, maxTrialNumber=3)
    assert seen == ["print(1)\n"] * 3
