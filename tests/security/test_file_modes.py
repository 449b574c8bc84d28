"""Who may read and write what a manager, its keeper and its trials create, whatever the umask at their start."""

import os
import stat
import sys
from pathlib import Path

import pytest
from fakes.real_manager import real_manager

pytestmark = pytest.mark.slow

TRIAL = """\
import os
import proctor
open("by-the-trial", "w").close()
open(os.path.join(os.environ["PROCTOR_OUTPUT_DIR"], "model"), "w").close()
proctor.report_final_result(proctor.get_next_parameter()["x"])
"""
TUNER = """\
from nni.tuner import Tuner

class Writing(Tuner):
    def update_search_space(self, search_space):
        open("by-the-tuner", "w").close()

    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": 0.5}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        pass
"""


CONFIG = """\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialCommand: PYTHON trial.py
trialConcurrency: 1
maxTrialNumber: 1
tuner: {className: writing.Writing}
trainingService: {platform: local}
"""
META = "{algoType: tuner, builtinName: Writing, className: writing.Writing}\n"


def open_ones(folder: Path) -> dict[str, str]:
    """What others than its owner may read, write or enter below a folder, the trials' own files left out."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        own = "output" in path.parts and path.is_file()
        if facts.st_mode & 0o077 and not own and not stat.S_ISLNK(facts.st_mode):
            found[str(path.relative_to(folder))] = f"{stat.S_IMODE(facts.st_mode):o}"
    return found


def test_a_home_made_without_a_umask_is_private_and_trials_and_tuners_keep_theirs(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with real_manager(tmp_path / "home") as manager:
            for name, text in {"writing.py": TUNER, "trial.py": TRIAL, "e.yml": CONFIG, "meta.yml": META}.items():
                (manager.code / name).write_text(text.replace("PYTHON", sys.executable))
            os.umask(0o013)  # that of the shell which creates the experiment, not of the one that started the manager
            manager.command_line("algo", "register", "-m", manager.code / "meta.yml")
            assert manager.spawn("create", "-c", "e.yml", "--id", "e", cwd=manager.code).wait(60.0) == 0
            manager.until_status("e", "DONE")
            manager.kill()
            manager.start()
            manager.client.stop_experiment("e")
            manager.until_status("e", "STOPPED")
            [trial] = manager.trials("e")
            model = Path(trial["directory"]) / "jobs" / "1" / "output" / "model"
            for path in (manager.code / "by-the-trial", model, manager.code / "by-the-tuner"):
                assert oct(stat.S_IMODE(path.stat().st_mode)) == "0o664", path
            assert (manager.home / "algorithms.json").exists()
            assert open_ones(manager.home) == {}
    finally:
        os.umask(before)
