"""A manager with few file descriptors serves many experiments, says when they run short, and loses nothing by it."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, TRIAL_SCRIPT, House, house
from chaos.processes import Kind, find

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

MOST = 110
USERS_LIMIT = 250
EXPERIMENTS = 20
"""With five descriptors for each of them there would be too few."""


def config(built: House, *options: str, **changes: Any) -> Mapping[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [0.4, 0.6]}},
        "trialCommand": built.trial_command(*options, steps=2, seconds=(0.05, 0.1)),
        "trialCodeDirectory": str(TRIAL_SCRIPT.parent),
        "trialConcurrency": 1,
        "maxTrialNumber": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }


def open_files(built: House) -> list[str]:
    """What the manager has open."""
    folder = Path(f"/proc/{built.manager_pid}/fd")
    return sorted(os.readlink(folder / number) for number in os.listdir(folder))


def open_databases(built: House) -> int:
    """Of how many experiments the manager has the metrics open."""
    return len({path.partition("metrics.db")[0] for path in open_files(built) if "metrics.db" in path})


def look_at(built: House, name: str) -> None:
    """View an experiment's metrics and export it."""
    (trial,) = built.ask(lambda client: list(client.trials(name)))
    stored = built.ask(lambda client: list(client.metrics(trial["id"])))
    assert [row["kind"] for row in stored] == ["intermediate", "intermediate", "final"]
    (outcome,) = built.ask(lambda client: list(client.export(name)))
    assert outcome["value"] == stored[-1]["value"]


def test_what_is_idle_holds_no_descriptors(tmp_path: Path) -> None:
    names = [f"e{number}" for number in range(EXPERIMENTS)]
    with house(tmp_path, prefix=("bash", "-c", f'ulimit -n {MOST}; exec "$@"', "bash")) as built:
        for name in names:
            built.create(config(built), name)
        for name in names:

            def is_done(name: str = name) -> bool | None:
                return built.ask(lambda client: client.experiment(name)["status"]) == "DONE" or None

            built.wait_for(is_done, f"experiment {name} to be DONE")
        for name in names:
            look_at(built, name)
        built.wait_for(lambda: open_databases(built) <= MOST // 16 or None, "few open databases")
        built.end_manager()  # the next one loads all of them
        for name in names:
            look_at(built, name)
        built.wait_for(lambda: open_databases(built) <= MOST // 16 or None, "few open databases")
        assert built.ask(lambda client: client.health()) == {"status": "ok", "reason": ""}
        assert built.deaths == []


def test_a_dispatcher_that_finds_no_descriptors_is_started_when_there_are_some(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with house(tmp_path, prefix=("bash", "-c", f'ulimit -Sn {USERS_LIMIT}; exec "$@"', "bash")) as built:
        built.create(config(built, "--gate", str(gate), "1", maxTrialNumber=2))
        built.wait_for(lambda: find(Kind.TRIAL, built.home, built.tag) or None, "a running trial")
        limits = resource.prlimit(built.manager_pid, resource.RLIMIT_NOFILE)
        assert limits[0] == limits[1]
        for kind in (Kind.TRIAL, Kind.DISPATCHER):
            (found,) = find(kind, built.home, built.tag)
            assert resource.prlimit(found.pid, resource.RLIMIT_NOFILE) == (USERS_LIMIT, limits[1]), kind
        used = len(open_files(built))
        resource.prlimit(built.manager_pid, resource.RLIMIT_NOFILE, (used, limits[1]))
        (dispatcher,) = find(Kind.DISPATCHER, built.home, built.tag)
        assert dispatcher.kill()

        def shown() -> dict[str, Any] | None:
            row = built.ask_once(lambda client: client.experiment(EXPERIMENT_ID))
            return row if "the dispatcher cannot be started: Too many open files" in row["reason"] else None

        row = built.wait_for(shown, "the reason")
        assert row["status"] in ("RUNNING", "NO_MORE_TRIAL")
        health = built.ask_once(lambda client: client.health())
        assert (health["status"], "file descriptors open" in health["reason"]) == ("degraded", True)
        resource.prlimit(built.manager_pid, resource.RLIMIT_NOFILE, limits)
        gate.touch()
        built.finish()
    audit.check(audit.Ending.read(built.home, built.ledgers), trials=2)
