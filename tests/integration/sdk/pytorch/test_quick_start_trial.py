"""The trainer's quick start as a trial, changed as its page says."""

import sys
from pathlib import Path

import pytest
from fakes.guide_samples import QUICK_START, find_sample, find_samples
from fakes.real_manager import real_manager

ADAM = "        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)\n"


def changed_script() -> str:
    script = find_sample("## A whole script", QUICK_START)
    imports, optimizer, end = find_samples("## In an experiment", QUICK_START)
    assert ADAM in script
    script = script.replace(ADAM, "".join(f"        {line}\n" for line in optimizer.splitlines()))
    return imports + script.partition("if __name__")[0] + end.replace("total_steps=20", "total_steps=2")


@pytest.mark.slow
@pytest.mark.thorough
def test_the_quick_start_is_a_trial_after_three_changes(tmp_path: Path) -> None:
    with real_manager(tmp_path) as manager:
        (manager.code / "train.py").write_text(changed_script())
        experiment = manager.create(
            "",
            trialCommand=f"{sys.executable} train.py",
            searchSpace={"lr": {"_type": "choice", "_value": [2e-3]}},
            maxTrialNumber=1,
        )
        manager.until_status(experiment, "DONE")
        (trial,) = manager.trials(experiment)
        assert trial["status"] == "SUCCEEDED", manager.said()
        assert trial["intermediate_count"] == 2
        assert 0.1 < trial["final_value"] <= 1.0
        outputs = Path(trial["directory"]) / "jobs" / "1" / "output"
        assert list(outputs.rglob("patterns_epoch_2_*.pth")), list(outputs.rglob("*"))
