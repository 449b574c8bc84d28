"""What a manager leaves behind when it ends."""

from dataclasses import replace

from proctor.manager.app import has_jobs_on
from proctor.manager.store.rows import TrialJobRow
from proctor.training_services.base import TrialJobStatus


def test_only_jobs_of_this_machine_need_its_keeper_when_the_manager_has_ended() -> None:
    here = TrialJobRow("t.1", "t", "e", 1, "x", TrialJobStatus.RUNNING, 0, {}, node_id="local")
    there = replace(here, id="u.1", node_id="gpu-1")
    in_a_cluster = replace(here, id="v.1", node_id=None)
    assert has_jobs_on("local", [(there, 1), (here, 0)])
    assert not has_jobs_on("local", [(there, 1), (in_a_cluster, 2)])
    assert not has_jobs_on("local", [])
