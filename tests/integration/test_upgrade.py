"""What previous releases have left under this release's manager: a home with a live keeper and its running trial, and
a keeper on a machine.

How it was recorded: docs/releasing.md.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.machines.group import Group, loopback_group
from fakes.machines.requirements import needs_loopback
from fakes.previous_release import (
    GO,
    NODE,
    REPORTED_BEFORE_GO,
    START,
    PreviousRelease,
    decisions,
    recorded_releases,
    unpack,
)
from fakes.real_manager import RealManager, Row

from proctor.manager.store.migrations import SchemaName, load_migrations
from proctor.training_services.remote.machines.records import choose_node_id, keeper_folder
from proctor.trial_keeper.start import read_facts

MANAGER_ID = "0123abcd"
STEPS = 4
TRIAL = f"""
import os, sys, time, proctor
checkpoint = proctor.get_checkpoint()
step = 0
if checkpoint:
    with open(os.path.join(checkpoint, "step")) as file:
        step = int(file.read())
while step < {STEPS} and not proctor.should_stop():
    step += 1
    os.makedirs("saved", exist_ok=True)
    folder = os.path.join("saved", os.environ["PROCTOR_JOB_ID"])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "step"), "w") as file:
        file.write(str(step))
    proctor.report(proctor.get_next_parameter()["x"] * step, checkpoint=folder, step=step)
    while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]) and not proctor.should_stop():
        time.sleep(0.05)
if step == {STEPS}:
    proctor.report_final_result(proctor.get_next_parameter()["x"] * step)
"""
"""Continues from its checkpoint. With a path it waits after a step until that exists, or until it is asked to stop."""
SCHEDULERS: dict[str, Row] = {
    "ASHA": {"grace_period": 1, "max_t": STEPS, "reduction_factor": 2, "type": "promotion"},
    "HyperBand": {"max_t": STEPS, "reduction_factor": 2},
    "PBT": {"time_attr": "training_iteration", "perturbation_interval": 2, "population_size": 4, "synch": True},
}
"""Under all of them trials pause and continue; PBT also has some continue from another one's checkpoint."""

releases = pytest.mark.parametrize("release", recorded_releases(), ids=lambda release: release.name)


@dataclass
class Upgrade:
    """The home, before this release's manager is started on it."""

    manager: RealManager
    release: PreviousRelease
    facts: dict[str, Any]
    keeper: "subprocess.Popen[bytes]"

    def version(self, database: str) -> int:
        """The version of the schema of a database in the home."""
        with closing(sqlite3.connect(self.manager.home / database)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def upgrade(release: PreviousRelease, tmp_path: Path) -> Iterator[Upgrade]:
    """The previous release's keeper runs the trial that it was sent before; there is no manager."""
    manager = RealManager(tmp_path / "home", tmp_path, {})
    facts = unpack(release, tmp_path, manager.tag)
    (manager.code / START).touch()
    command = [*keeper_command(str(release.keeper)), "serve", "--directory", str(tmp_path / NODE)]
    keeper = subprocess.Popen(command, env=manager.environment, start_new_session=True)
    try:
        yield Upgrade(manager, release, facts, keeper)
    finally:
        manager.end()
        keeper.wait()


def keeper_command(archive: str, python: str = sys.executable) -> list[str]:
    """What runs a keeper's archive."""
    return [python, "-I", "-S", "-X", "utf8", archive]


def journal_of(manager: RealManager, experiment_id: str) -> bytes:
    """What its trials have reported, whether or not a manager has it."""
    journals = manager.home.glob(f"experiments/{experiment_id}/trials/*/jobs/1/journal")
    return b"".join(path.read_bytes() for path in journals)


def newest(schema: SchemaName) -> int:
    return len(load_migrations(schema))


def start_manager(upgrade: Upgrade) -> None:
    """Start it on a trial that runs and has reported; returns when these reports are stored."""
    manager, launched = upgrade.manager, upgrade.facts["launched"]
    manager.poll_for(
        lambda: journal_of(manager, launched).count(b"\n") >= REPORTED_BEFORE_GO, "the reports, without a manager"
    )
    manager.start()

    def all_stored() -> bool:
        return len(list(manager.client.metrics(upgrade.facts["trial"]))) == REPORTED_BEFORE_GO

    manager.until(all_stored, "the reports to be stored")
    assert [row["status"] for row in manager.trials(launched)] == ["RUNNING"]


def let_trials_end(upgrade: Upgrade) -> None:
    """Returns when both trials have succeeded, each in its first attempt."""
    manager, launched = upgrade.manager, upgrade.facts["launched"]
    (manager.code / GO).touch()
    manager.until_status(launched, "DONE")
    rows = manager.trials(launched)
    assert [row["status"] for row in rows] == ["SUCCEEDED", "SUCCEEDED"]
    assert rows[0]["id"] == upgrade.facts["trial"]
    assert [len(list(manager.client.jobs(row["id"]))) for row in rows] == [1, 1]


@releases
def test_a_keeper_of_this_release_takes_over_what_a_live_one_of_a_previous_release_runs(upgrade: Upgrade) -> None:
    manager, finished = upgrade.manager, upgrade.facts["finished"]
    before = upgrade.version("control.db"), upgrade.version(f"experiments/{finished}/metrics.db")
    assert before == (upgrade.facts["control"], upgrade.facts["metrics"])
    start_manager(upgrade)
    facts = read_facts(manager.home / "nodes" / "local")
    assert facts is not None
    assert (facts.pid != upgrade.keeper.pid, facts.archive) == (True, "")
    go = manager.code / "continue"
    continue_from_checkpoints(manager, {"platform": "local"}, go=go, path_there=str(go))
    pause_at_milestones(manager, {"platform": "local"})
    let_trials_end(upgrade)

    check_results_are_kept(upgrade)
    assert upgrade.version("control.db") == newest("control") >= before[0]
    assert upgrade.version(f"experiments/{finished}/metrics.db") == newest("metrics") >= before[1]


@pytest.mark.parametrize(
    "release",
    [release for release in recorded_releases() if "half_done" in release.read_facts()],
    ids=lambda release: release.name,
)
def test_a_half_done_experiment_is_decided_to_its_end_as_the_previous_release_would(upgrade: Upgrade) -> None:
    manager, half_done = upgrade.manager, upgrade.facts["half_done"]
    assert {recorded["scheduler"] for recorded in half_done.values()} == {"ASHA", "HyperBand", "PBT", "MedianStopping"}
    start_manager(upgrade)
    for experiment_id in half_done:
        assert [row["status"] for row in manager.trials(experiment_id)].count("RUNNING") == 1
    (manager.code / GO).touch()
    for experiment_id, recorded in half_done.items():
        assert manager.until_status(experiment_id, "DONE")["rules"] == 1
        assert decisions(manager, experiment_id) == recorded["decisions"], recorded["scheduler"]


@pytest.mark.thorough
@needs_loopback
@releases
def test_a_keeper_of_a_previous_release_on_a_machine_is_replaced(release: PreviousRelease, tmp_path: Path) -> None:
    with ExitStack() as stack:
        group = stack.enter_context(loopback_group(tmp_path / "machines", 1))
        manager = RealManager(tmp_path / "home", tmp_path, group.person.environment)
        stack.callback(manager.end)
        manager.home.mkdir()
        (manager.home / "manager.id").write_text(MANAGER_ID)
        start_keeper(group, release)
        manager.start()
        service = {"platform": "remote", "machineList": group.machine_list(), "keepAliveInterval": 0.5}
        go, path_there = group.machines[0].records / "go", "/run/machine/records/go"
        continue_from_checkpoints(manager, service, go=go, path_there=path_there, interpreter="python3")
        pause_at_milestones(manager, service, interpreter="python3")


def start_keeper(group: Group, release: PreviousRelease) -> None:
    """Have a previous release's keeper serve where a manager with `MANAGER_ID` will find it."""
    [machine] = group.machines
    user = machine.users[0]
    node_id = choose_node_id(machine.entry()["host"], ())
    name = keeper_folder(MANAGER_ID, node_id)
    folder = machine.home() / ".proctor" / "nodes" / name
    folder.mkdir(parents=True)
    (folder / release.archive_name).write_bytes(release.keeper.read_bytes())
    for path in (folder.parent.parent, folder.parent, folder, folder / release.archive_name):
        os.chown(path, user.uid, user.uid)
    body = {"directory": f"~/.proctor/nodes/{name}", "node_id": node_id, "secret": "x" * 43, "socket": ""}
    command = " ".join(keeper_command(f"/run/home/{user.name}/.proctor/nodes/{name}/{release.archive_name}", "python3"))
    told = json.dumps(body)
    answer = machine.run(
        "sh", "-c", f"export HOME=/run/home/{user.name}; echo '{told}' | {command} start", user=user.name
    )
    assert json.loads(answer)["started"], answer


def continue_from_checkpoints(manager: RealManager, service: Row, *, go: Path, path_there: str, **options: Any) -> None:
    """A trial that is paused and resumed, and its clone.

    :param go: once it is there, they train to their end.
    :param path_there: its path where they run.
    """
    experiment = manager.create(
        TRIAL, path_there, maxTrialNumber=1, trialConcurrency=2, trainingService=service, **options
    )

    def saved() -> Row | None:
        found = manager.trials(experiment)
        return found[0] if found and list(manager.client.metrics(found[0]["id"])) else None

    trial = manager.until(saved, "a report with a checkpoint")["id"]
    manager.client.pause_trial(trial)
    manager.until(lambda: manager.client.trial(trial)["status"] == "PAUSED", "the trial to be paused")
    clone = manager.client.clone_trial(trial, {"x": 0.5})["id"]
    manager.client.resume_trial(trial)
    go.touch()
    manager.until_status(experiment, "DONE")
    assert [row["status"] for row in manager.trials(experiment)] == ["SUCCEEDED", "SUCCEEDED"]
    first, second = manager.client.jobs(trial)
    [cloned] = manager.client.jobs(clone)
    assert second["resumed_from_job"] == cloned["resumed_from_job"] == first["id"]


def pause_at_milestones(manager: RealManager, service: Row, **options: Any) -> None:
    """Trials that their scheduler pauses, and has continue from checkpoints."""
    options = {"maxTrialNumber": 4, "trialConcurrency": 2, "trainingService": service, **options}
    experiments = {
        name: manager.create(TRIAL, trialScheduler={"name": name, "classArgs": arguments}, **options)
        for name, arguments in SCHEDULERS.items()
    }
    for name, experiment in experiments.items():
        manager.until_status(experiment, "DONE")
        jobs = [list(manager.client.jobs(row["id"])) for row in manager.trials(experiment)]
        continued = [(before["id"], job["resumed_from_job"]) for row in jobs for before, job in pairwise(row)]
        assert continued, name
        assert all(origin for _, origin in continued), (name, continued)
        cloned = [origin for before, origin in continued if before != origin]
        assert bool(cloned) == (name == "PBT"), (name, continued)


def check_results_are_kept(upgrade: Upgrade) -> None:
    """Those of the finished experiment, which can continue."""
    manager, finished = upgrade.manager, upgrade.facts["finished"]
    assert manager.client.experiment(finished)["status"] == "DONE"
    assert {row["id"]: row["final_value"] for row in manager.trials(finished)} == upgrade.facts["values"]
    for row in manager.trials(finished):
        assert [metric["value"] for metric in manager.client.metrics(row["id"])][-1] == row["final_value"]
    manager.command_line("update", "trialnum", finished, "--value", "5")
    manager.until(lambda: len(manager.trials(finished)) == 5 or None, "another trial")
    manager.until_status(finished, "DONE")
