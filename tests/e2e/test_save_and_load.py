"""An experiment saved in one home continues in another: real managers, keepers, trials, a tuner of the user's own."""

import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

TUNER = """\
from nni.tuner import Tuner

class Counting(Tuner):
    def __init__(self):
        self.known = 0

    def update_search_space(self, search_space):
        pass

    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": self.known / 100}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        self.known += 1

    def import_data(self, data):
        assert all(row["value"] == row["parameter"]["x"] for row in data), data
        self.known += len(data)
"""

TRIAL = """\
import os, time
import proctor

x = proctor.get_next_parameter()["x"]
proctor.report_intermediate_result(x / 2)
print("x is", x, flush=True)
with open(os.path.join(os.environ["PROCTOR_OUTPUT_DIR"], "model"), "w") as file:
    file.write(str(x))
while time.process_time() < 0.05:  # its processor time is counted in hundredths of a second
    pass
while x >= 0.03 and not os.path.exists("go"):
    time.sleep(0.02)
proctor.report_final_result(x)
"""


def curves(manager: RealManager, trials: list[dict[str, Any]]) -> list[Any]:
    """What the trials have reported, without what says where."""
    return [(m["kind"], m["sequence"], m["data"], m["time"]) for t in trials for m in manager.client.metrics(t["id"])]


def saved(manager: RealManager, target: Path) -> tuple[str, list[dict[str, Any]], list[Any]]:
    """An experiment of three ended trials and a running one, saved with its code while it runs."""
    (manager.code / "counting.py").write_text(TUNER)
    experiment = manager.create(
        TRIAL, maxTrialNumber=6, tuner={"className": "counting.Counting", "codeDirectory": str(manager.code)}
    )

    def fourth() -> dict[str, Any] | None:
        running = [t for t in manager.trials(experiment) if t["sequence_id"] == 3 and t["latest_value"] is not None]
        return running[0] if running else None

    manager.until(fourth, "the fourth trial's metric")
    manager.client.save_view(experiment, "best / first", page="trials", query="sort=-value")
    printed = manager.command_line("experiment", "save", experiment, "-p", target, "--code")
    assert printed == f"{target}\n"
    trials = manager.trials(experiment)
    return experiment, trials, curves(manager, trials)


def test_an_experiment_goes_on_in_another_home(tmp_path: Path) -> None:
    archive, code = tmp_path / "saved.zip", tmp_path / "elsewhere"
    with real_manager(tmp_path / "old") as old:
        experiment, trials, metrics = saved(old, archive)
    with real_manager(tmp_path / "new") as new:
        loaded = new.command_line("experiment", "load", "-p", archive, "--codeDir", code)
        assert loaded == f"{experiment}\n"
        found = new.client.experiment(experiment)
        assert found["status"] == "STOPPED"
        assert "it was RUNNING" in found["reason"]
        assert found["trial_counts"] == {"SUCCEEDED": 3, "WAITING": 1}
        assert found["directory"] == str(new.home / "experiments" / experiment)
        views = [(view["name"], view["page"], view["query"]) for view in new.client.views(experiment)]
        assert views == [("best / first", "trials", "sort=-value")]
        assert found["config"]["trial_code_directory"] == found["config"]["tuner"]["code_directory"] == str(code)
        ended = new.trials(experiment)[:3]
        kept = ("id", "sequence_id", "status", "parameters", "parameter_id", "final_value", "started_at", "ended_at")
        kept += ("usage",)
        usage = [trial["usage"] for trial in ended]
        assert all(used["cpu_hours"] > 0 and not used["unmeasured_jobs"] for used in usage), usage
        assert [[t[name] for name in kept] for t in ended] == [[t[name] for name in kept] for t in trials[:3]]
        assert curves(new, new.trials(experiment)) == metrics
        assert new.client.trial_log(ended[1]["id"]).data == b"x is 0.01\n"
        assert new.client.trial_tail(ended[1]["id"], 3) == b"x is 0.01\n"
        assert (Path(ended[1]["directory"]) / "jobs/1/output/model").read_text() == "0.01"
        assert not list((new.home / "incoming").iterdir())
        assert not (Path(found["directory"]) / "loading").exists()
        refused = new.attempt("experiment", "load", "-p", archive)
        assert (refused.returncode, f"experiment {experiment} already exists" in refused.stderr) == (5, True)
        refused = new.attempt("experiment", "load", "-p", archive, "--id", "again")
        assert (refused.returncode, f"already exists, in experiment {experiment}" in refused.stderr) == (5, True)
        assert not (new.home / "experiments" / "again").exists()
        (code / "go").touch()
        new.client.resume_experiment(experiment)
        new.until_status(experiment, "DONE")
        assert [t["status"] for t in new.trials(experiment)] == ["SUCCEEDED"] * 6
        # The first three as they were; the fourth once more; then a tuner that knows the three it was given, and from
        # then on those it has suggested itself.
        assert [t["final_value"] for t in new.trials(experiment)] == [0.0, 0.01, 0.02, 0.03, 0.03, 0.04]
        assert [t["parameter_id"] for t in new.trials(experiment)] == list(range(6))
        assert [t["jobs"] for t in new.trials(experiment)] == [1, 1, 1, 2, 1, 1]
        points = [m["sequence"] for m in new.client.metrics(trials[3]["id"], kind="intermediate")]
        assert points == [0, 0]
        assert sys.executable in str(new.client.experiment(experiment)["config"]["trial_command"])
