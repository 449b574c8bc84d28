"""Archives whose parts are sound, but of which no experiment can be made, are refused; nothing of one stays."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, all_trials

from proctor.manager.config.loading import load_experiment_mapping
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.engine.archive.importing import decisions_of
from proctor.manager.errors import BadRequest, ManagerError
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import events
from proctor.training_services.base import TrialJobStatus

CONFIG = SMALL


def load(tmp_path: Path, members: Mapping[str, str], **head: Any) -> tuple[ExperimentRow, list[str], list[TrialRow]]:
    """Load an archive with these members, and these values in its head; returns the experiment, its notices and its
    trials. Raises what the manager raises."""
    refusals: list[ManagerError] = []
    loaded: list[tuple[ExperimentRow, list[str], list[TrialRow]]] = []

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop)
        async with simulation.manager() as manager:
            config = load_experiment_mapping(CONFIG, str(tmp_path)).config.canonical()
            experiment = {
                "id": "e",
                "name": "n",
                "status": "DONE",
                "config": config,
                "search_space": config["search_space"],
                "trial_concurrency": 1,
                "max_trial_number": None,
                "max_experiment_duration_seconds": None,
                "max_trial_duration_seconds": None,
                "created_at": "2026-01-02T03:04:05.000Z",
            }
            records = {f"{name}.jsonl": "" for name in ("trials", "jobs", "metrics")}
            simulation.home.incoming_directory.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(simulation.home.incoming_directory / "e.zip", "w") as file:
                file.writestr("proctor.json", json.dumps({"format": 1, "experiment": experiment | head}))
                for name, text in (records | dict(members)).items():
                    file.writestr(name, text)
            try:
                row = await manager.load_experiment(archive="e.zip")
            except ManagerError as error:
                refusals.append(error)
            else:
                assert row.status is ExperimentStatus.STOPPED
                stored = await manager.experiment(row.id)
                notices = await manager.control.read(lambda c: events.notices(c, stored.id))
                loaded.append((stored, notices, await all_trials(manager, row.id)))

    run_virtual(main)
    if refusals:
        raise refusals[0]
    return loaded[0]


def folders(tmp_path: Path) -> list[Path]:
    return list(Home(tmp_path / "home").experiment_directory("e").parent.glob("*"))


def test_a_sound_one_is_loaded(tmp_path: Path) -> None:
    load(tmp_path, {"experiment/trials/a/é.txt": "x", "experiment/trials/a/index.db/1": "x"})
    [folder] = folders(tmp_path)
    assert (folder / "trials" / "a" / "é.txt").read_text() == "x"
    assert (folder / "trials" / "a" / "index.db" / "1").exists()


@pytest.mark.parametrize(
    "members",
    [
        ("experiment/a", "experiment/a/b"),
        ("experiment/a/b", "experiment/a"),
        ("experiment/" + "a" * 256,),
        ("experiment/" + "é" * 128,),
        ("experiment/" + "a/" * 2500 + "a",),
        ("experiment/log",),
        ("experiment/metrics.db/x",),
        ("experiment/metrics.db-wal/x",),
        ("experiment/environment.json/x",),
    ],
    ids=lambda members: members[0][11:30],
)
def test_names_that_no_folder_can_hold_are_refused_by_name(tmp_path: Path, members: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest, match=r"its member 'experiment/|it contains 'experiment/"):
        load(tmp_path, dict.fromkeys(members, "x"))
    assert not folders(tmp_path)


@pytest.mark.parametrize("space", [None, [], "text", {}, {"x": {"_type": "uniform", "_value": [1]}}])
def test_a_search_space_that_the_tuner_cannot_read_is_refused(tmp_path: Path, space: Any) -> None:
    with pytest.raises(BadRequest, match="the saved search space cannot be used by this version"):
        load(tmp_path, {}, search_space=space)
    assert not folders(tmp_path)


def test_a_paused_trial_stays_paused_by_who_has_paused_it_and_what_a_scheduler_had_paused_is_the_users(
    tmp_path: Path,
) -> None:
    trial = {"status": "PAUSED", "reason": "paused", "parameters": {"x": 0.5}, "source": "algorithm", "jobs": 1}
    trial |= {"created_at": "2026-01-02T03:04:05.000Z"}
    saved = ("USER", "EXPERIMENT", "SCHEDULER", None)  # the last one by an earlier version
    records = [
        json.dumps(trial | {"id": f"t{n}", "sequence_id": n, "parameter_id": n, "paused_by": paused_by})
        for n, paused_by in enumerate(saved)
    ]
    _, _, rows = load(tmp_path, {"trials.jsonl": "\n".join(records)})
    assert [row.status for row in rows] == ["PAUSED"] * 4
    assert [row.paused_by for row in rows] == ["USER", "EXPERIMENT", "USER", "USER"]
    assert rows[2].reason == "paused; it is loaded from an archive: a user may resume it"


def test_only_a_job_with_new_parameters_continues_from_another_trial_by_a_decision() -> None:
    def job(trial_id: str, number: int, parameter_id: int, resumed_from: str | None) -> TrialJobRow:
        key, status = f"{trial_id}.{number}", TrialJobStatus.ENDED
        return TrialJobRow(key, trial_id, "e", number, "token", status, parameter_id, {}, resumed_from_job=resumed_from)

    jobs = [job("u", 1, 1, "d.2"), job("u", 2, 1, "d.1")]  # a user's clone: it fell back to an older checkpoint
    jobs += [job("s", 1, 2, None), job("s", 2, 5, "d.2"), job("s", 3, 5, "d.1")]
    found = decisions_of(jobs)
    assert [(row.trial_id, row.job, row.parameter_id, row.donor_job) for row in found] == [("s", 2, 5, "d.2")]


def test_an_archive_of_an_earlier_version_keeps_the_first_rules_and_its_notice_says_so(tmp_path: Path) -> None:
    config = load_experiment_mapping(SMALL | {"trialScheduler": {"name": "PBT"}}, str(tmp_path)).config.canonical()
    row, notices, _ = load(tmp_path, {}, config=config)
    assert row.rules == 1
    assert notices[-1].startswith("keeps the rules that it began with (version 1), so that it decides as before. ")


def test_the_version_of_the_rules_is_kept(tmp_path: Path) -> None:
    config = load_experiment_mapping(SMALL | {"trialScheduler": {"name": "PBT"}}, str(tmp_path)).config.canonical()
    row, notices, _ = load(tmp_path, {}, config=config, rules=CURRENT_RULES)
    assert (row.rules, len(notices)) == (CURRENT_RULES, 1)


def test_rules_of_a_later_version_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=f"knows them up to version {CURRENT_RULES}; update Proctor"):
        load(tmp_path, {}, rules=CURRENT_RULES + 1)
    assert not folders(tmp_path)
