"""Trials that report more than can be stored at once do not keep the end of another trial from being known."""

import sys
from pathlib import Path
from typing import Any

import pytest
from chaos import flooding_trial
from chaos.harness import EXPERIMENT_ID, House, house

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

FLOODS = 2


def trials(built: House) -> dict[str, list[dict[str, Any]]]:
    """The trials by their role."""
    found: dict[str, list[dict[str, Any]]] = {"flood": [], "quiet": []}
    for row in built.ask(lambda client: list(client.trials(EXPERIMENT_ID))):
        found[row["parameters"]["role"]].append(row)
    return found


def test_an_end_is_known_before_the_reports_of_trials_that_report_without_pause(tmp_path: Path) -> None:
    roles = ["flood"] * FLOODS + ["quiet"]
    with house(tmp_path) as built:
        words = [sys.executable, "-S", Path(flooding_trial.__file__), tmp_path, FLOODS]
        built.create(
            {
                "searchSpace": {"parameters": {"_type": "choice", "_value": [{"role": role} for role in roles]}},
                "trialCommand": " ".join(map(str, words)),
                "trialConcurrency": len(roles),
                "maxTrialNumber": len(roles),
                "tuner": {"name": "Batch"},
                "trainingService": {"platform": "local"},
            }
        )

        def ended() -> bool | None:
            return True if [row["status"] for row in trials(built)["quiet"]] == ["SUCCEEDED"] else None

        built.wait_for(ended, "the end of the quiet trial")
        stored = [row["intermediate_count"] for row in trials(built)["flood"]]
        assert all(0 < count < flooding_trial.REPORTS for count in stored), "both are being stored, side by side"
        (tmp_path / "go").touch()
        built.wait_until_done()
        assert [row["intermediate_count"] for row in trials(built)["flood"]] == [flooding_trial.REPORTS] * FLOODS
        built.shut_down()
