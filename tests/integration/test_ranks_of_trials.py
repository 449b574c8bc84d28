"""Trials that are several processes: real managers, keepers and trials, with a launcher as torchrun is one."""

from pathlib import Path

import pytest
from fakes.real_manager import real_manager

LAUNCHER = """
import os, subprocess, sys

processes = []
for rank in (1, 0):
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "41234"}
    code = "import os, proctor; rank = int(os.environ['RANK'])\\n"
    code += "for step in range(3): proctor.report_intermediate_result(10 * rank + step)\\n"
    code += "proctor.report_final_result(10 * rank + 9)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], env={**os.environ, **ranks})
    assert process.wait() == 0  # rank 1 reports everything before rank 0 begins
"""

ALONE = """
import proctor
proctor.report_final_result(5)
"""


@pytest.mark.slow
def test_one_rank_of_a_trial_counts_and_a_rank_of_the_users_shell_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with real_manager(tmp_path) as manager:
        first = manager.create(LAUNCHER, maxTrialNumber=1)
        last = manager.create(LAUNCHER, maxTrialNumber=1, reportFrom=1)
        alone = manager.create(ALONE, maxTrialNumber=1)
        finals = {}
        for experiment_id in (first, last, alone):
            manager.until_status(experiment_id, "DONE")
            [trial] = manager.trials(experiment_id)
            finals[experiment_id] = (trial["status"], trial["final_value"], trial["intermediate_count"])
        assert finals == {first: ("SUCCEEDED", 9, 3), last: ("SUCCEEDED", 19, 3), alone: ("SUCCEEDED", 5, 0)}
        [trial] = manager.trials(first)
        stored = [(row["member"], row["counts"], row["value"]) for row in manager.client.metrics(trial["id"])]
        assert sorted(stored) == [(0, True, n) for n in (0, 1, 2, 9)] + [(1, False, n) for n in (10, 11, 12, 19)]
        assert [row["value"] for row in manager.client.trial_curve(trial["id"])] == [0, 1, 2]
        ranks = [tuple(row.values()) for row in manager.client.trial_ranks(trial["id"])]
        assert ranks == [(0, True, 3, 2, 9), (1, False, 3, 12, 19)]


SAVER = """
import os, subprocess, sys, time, pathlib
import proctor

if "RANK" not in os.environ:
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)]
    processes = [subprocess.Popen([sys.executable, "-S", __file__], env={**os.environ, **rank}) for rank in ranks]
    sys.exit(max(process.wait() for process in processes))
rank = int(os.environ["RANK"])
while not proctor.should_stop():
    proctor.report_intermediate_result(rank)
    time.sleep(0.02)
request = proctor.stop_request()
pathlib.Path(os.environ["PROCTOR_OUTPUT_DIR"], f"saved-{rank}").write_text(request.request)
"""


@pytest.mark.slow
def test_every_rank_is_asked_to_stop_and_may_save(tmp_path: Path) -> None:
    with real_manager(tmp_path) as manager:
        experiment_id = manager.create(SAVER, maxTrialNumber=1)

        def both_report() -> bool | None:
            rows = [row for trial in manager.trials(experiment_id) for row in manager.client.metrics(trial["id"])]
            return {row["member"] for row in rows} == {0, 1} or None

        manager.until(both_report, "reports of both ranks")
        manager.client.stop_experiment(experiment_id)
        manager.until_status(experiment_id, "STOPPED")
        saved = (manager.home / "experiments" / experiment_id / "trials").glob("*/jobs/1/output/saved-*")
        assert {path.name: path.read_text() for path in saved} == {"saved-0": "stop", "saved-1": "stop"}
