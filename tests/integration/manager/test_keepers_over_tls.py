"""A manager with `--keeper-listen`, and a keeper that reaches it by TLS."""

import json
from pathlib import Path

import httpx
import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.manager.process.instance import read_address
from proctor.manager.settings import Home
from proctor.sdk.files import replace_file

pytestmark = pytest.mark.slow

COUNT = 60
REPORTING = f"""
import os, time
journal = os.path.join(os.environ["PROCTOR_JOB_DIR"], "journal")
for number in range({COUNT}):
    with open(journal, "a") as file:
        file.write('{{"kind": "intermediate", "value": %d, "time": 1764000000}}\\n' % number)
    time.sleep(0.1)
with open(journal, "a") as file:
    file.write('{{"kind": "final", "value": 1, "time": 1764000000}}\\n')
"""


def reports(manager: RealManager, experiment: str) -> int:
    """How many intermediate metrics of its trial are stored; each is another one."""
    (trial,) = manager.trials(experiment)
    values = [metric["value"] for metric in manager.client.metrics(trial["id"], kind="intermediate")]
    assert values == list(range(len(values)))
    return len(values)


@pytest.mark.thorough
def test_a_manager_that_is_killed_in_the_middle_of_deliveries_over_tls_gets_all_reports_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    environment = {"PROCTOR_KEEPER_LISTEN": "127.0.0.1:0"}
    with real_manager(tmp_path, environment=environment) as manager:
        address = read_address(home)
        assert address is not None
        pointer = home.endpoint_pointer.read_text()
        assert pointer.startswith(f"{address.keeper_url}\nsha256:")
        assert json.loads(manager.command_line("manager", "status", "-o", "json"))["keeper_url"] == address.keeper_url
        with httpx.Client(base_url=address.keeper_url, verify=False) as stranger:
            token = {"Authorization": f"Bearer {manager.client.token}"}
            assert stranger.get("/api/v1/experiments", headers=token).status_code == 404
        log = home.path / "nodes/local/log"

        def registered(times: int) -> bool | None:
            return (log.exists() and log.read_text().count("registered with the manager") >= times) or None

        manager.poll_for(lambda: registered(1), "the keeper to come")
        replace_file(str(home.socket_pointer), pointer.encode(), durable=False)  # which the local keeper follows
        manager.poll_for(lambda: registered(2), "the keeper to move")
        experiment = manager.create(REPORTING, maxTrialNumber=1)
        manager.until(lambda: manager.trials(experiment) or None, "a trial")
        for wanted in (5, 25):
            manager.until(lambda wanted=wanted: reports(manager, experiment) >= wanted or None, "reports")
            manager.kill()
            manager.environment["PROCTOR_KEEPER_LISTEN"] = address.keeper_url.removeprefix("https://")
            manager.start()
            replace_file(str(home.socket_pointer), pointer.encode(), durable=False)
        manager.until_status(experiment, "DONE")
        assert reports(manager, experiment) == COUNT
        assert home.endpoint_pointer.read_text() == pointer
        assert "pinned" not in log.read_text()
