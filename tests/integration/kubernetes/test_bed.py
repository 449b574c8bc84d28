"""The cluster of the tests behaves as a real one does, in what the tests of platform kubernetes do not show."""

from pathlib import Path

import pytest
from fakes.kubernetes.cluster import Cluster
from fakes.kubernetes.jobs import start_job, state_of, wait_for_end

pytestmark = pytest.mark.thorough


def test_a_job_runs_as_pid_1_on_files_that_reach_nothing_of_this_machine_and_says_how_it_ends(cluster: Cluster) -> None:
    cluster.add_node("node")
    script = "echo $$$$; hostname; pwd; touch /proctor-was-here; echo done > /dev/termination-log; kill $$$$; exit 0"
    start_job(cluster, "job", script, workingDir="/of/its/own")
    start_job(cluster, "failing", "echo why; exit 3", terminationMessagePolicy="FallbackToLogsOnError")
    start_job(cluster, "killed", "kill -9 1; sh -c 'kill -9 $$$$'")
    assert wait_for_end(cluster, "job") == "Complete"
    (pod,) = cluster.pods_of("job")
    name = pod["metadata"]["name"]
    assert cluster.log(name).splitlines() == ["1", name, "/of/its/own"]
    assert cluster.log(name, tailLines="1") == "/of/its/own\n"
    ended = state_of(pod)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "done\n")
    assert not Path("/proctor-was-here").exists()
    assert not Path("/of/its/own").exists()
    assert [wait_for_end(cluster, job) for job in ("failing", "killed")] == ["Failed", "Failed"]
    ended = state_of(cluster.pods_of("failing")[0])["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why\n")
    assert state_of(cluster.pods_of("killed")[0])["terminated"]["exitCode"] == 137
