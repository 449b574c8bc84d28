"""A manager whose machine has no processes left for trials."""

from pathlib import Path

from fakes.process_limit import process_limit
from fakes.real_manager import real_manager

from proctor.trial_keeper.start import find_keeper

TRIAL = "import proctor; proctor.report_final_result(proctor.get_next_parameter()['x'])"


def test_trials_wait_with_the_reason_until_there_are_processes_and_are_not_charged(tmp_path: Path) -> None:
    with process_limit() as limit, real_manager(tmp_path) as manager:
        manager.until_status(manager.create(TRIAL, maxTrialNumber=1), "DONE")
        keeper = find_keeper(manager.home / "nodes" / "local")
        assert keeper is not None
        limit.close(keeper)
        experiment = manager.create(TRIAL, maxTrialNumber=1, maxInfrastructureRetries=0)

        def waits() -> bool:
            trials = manager.trials(experiment)
            return bool(trials) and "no process can be started" in trials[0]["reason"]

        manager.until(waits, "the reason of the trial")
        manager.until(lambda: "no process can be started" in manager.client.health()["reason"], "the reason of health")
        assert manager.client.health()["status"] == "degraded"
        limit.open()
        manager.until_status(experiment, "DONE")
        assert [row["status"] for row in manager.trials(experiment)] == ["SUCCEEDED"]
