"""Whatever an experiment has in the databases is in its archive, or there is a reason why it is not.

A table or a column that is new makes this fail until it is known what an archive does with it.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fakes.served_manager import NOW, ServedManager

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind, PausedBy
from proctor.manager.store.rows import (
    CheckpointRow,
    DecisionRow,
    InputRow,
    MetricRow,
    Row,
    SavedViewRow,
    TrialJobRow,
    TrialRow,
)
from proctor.manager.store.tables import checkpoints, dispatcher_inputs, jobs, metrics, trials
from proctor.manager.store.tables.metrics import JournalStart
from proctor.sdk.client import Client
from proctor.training_services.base import EndReason, NodePlacement, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Hang, Raw
from proctor.trial_keeper.protocol import GpuSlot

KEPT = ""
NEW_LOG = "the dispatcher is a new one, with an input log of its own"
NO_JOBS_RUN = "it is about a job that runs, and the jobs of an archive are over"
OF_THE_HOME = "it is of the home, not of an experiment"
A_CACHE = "it is made again from the other tables"
AS_LOADED = "it says how the experiment came here"
BEGINS_ANEW = "what is counted until the experiment is resumed begins anew then"
NOT_THE_JOURNAL = "the journals themselves are not kept, so that places in them mean nothing"


def _each(names: str, rule: str) -> dict[str, str]:
    """The same rule for several columns."""
    return dict.fromkeys(names.split(), rule)


RULES: Mapping[str, str | Mapping[str, str]] = {
    "experiments": {
        **_each(
            "id name config search_space created_at trial_concurrency max_trial_number max_experiment_seconds "
            "max_trial_seconds max_gpu_hours next_sequence_id active_seconds started_at ended_at priority tags "
            "rules",
            KEPT,
        ),
        **_each("status reason error", "a loaded experiment is STOPPED, and says why"),
        **_each("directory clean_up_owed", AS_LOADED),
        "seed": "kept where the configuration names it; else drawn, as suggestions begin anew",
        "next_parameter_id": "ids that no trial has may be used again: their requests are forgotten",
        **_each("next_position metrics_told", NEW_LOG),
        **_each("revision resumes ended_trials failed_trials alike_failures failure_cause", BEGINS_ANEW),
        "trials_without_final": BEGINS_ANEW,
        "archived": "it is loaded to be looked at",
    },
    "trials": {
        **_each(
            "id experiment_id sequence_id status parameter_id parameters created_at reason source jobs "
            "intermediate_count latest_value final_value final_data started_at ended_at origin_trial origin_job "
            "origin_checkpoint paused_by",
            KEPT,
        ),
        **_each("state position", NEW_LOG),
        **_each("failures infrastructure_failures not_before fruitless_jobs", BEGINS_ANEW),
    },
    "trial_jobs": {
        **_each(
            "id trial_id experiment_id number status parameter_id parameters stop_reason end_reason detail "
            "parent_job resumed_from_job resumed_from_step resume_checkpoint placement node_id pid exit_code "
            "signal code_fingerprint submitted_at started_at ended_at start_reason counted_gpus cpu_seconds "
            "run_seconds verdict_seconds",
            KEPT,
        ),
        "token": "a report of the original's job must not be taken for one of this job",
        "members": "always 1",
        "resume_node_id": "the checkpoints of an archive are on the manager's machine",
        "stop_position": NEW_LOG,
        **_each("save_until checkpoints start_moment runs_since", NO_JOBS_RUN),
        "resumes": BEGINS_ANEW,
        "stopped_by": "the tokens of another home mean nothing here",
    },
    "decisions": {
        **_each(
            "experiment_id parameter_id kind trial_id decided_at parameters donor_trial donor_job donor_checkpoint "
            "donor_sequence job",
            KEPT,
        ),
        **_each("position state", NEW_LOG),
        "donor_node": "the checkpoints of an archive are on the manager's machine",
        "reason": "the reason of the job says it",
    },
    "saved_views": {
        **_each("experiment_id name page query saved_at", KEPT),
        "saved_by": "the tokens of another home mean nothing here",
    },
    "scheduler_tables": {"experiment_id": KEPT, "tables": KEPT, "updated_at": AS_LOADED},
    "dispatcher_inputs": NEW_LOG + "; imported results are kept, see below",
    "dispatcher_states": NEW_LOG,
    "events": "they are what has happened in this home",
    "trial_counts": {"experiment_id": KEPT, "status": KEPT, "trials": KEPT},
    "job_usage": _each("experiment_id node_id gpu_seconds cpu_seconds unmeasured_jobs", KEPT),
    "unmarked_storages": "it is decided when the experiment is loaded whose its storage is",
    "nodes": OF_THE_HOME,
    "node_samples": OF_THE_HOME,
    "pruned_events": OF_THE_HOME,
    "home": OF_THE_HOME,
    "deleted_experiments": OF_THE_HOME,
    "sqlite_sequence": OF_THE_HOME,
    "metrics": {
        **_each("id trial_id job member kind sequence step value data time seconds", KEPT),
        "offset": NOT_THE_JOURNAL,
    },
    "journals": {
        **_each(
            "trial_id job member first_sequence resumed_from intermediates finals losses unreadables started_at "
            "first_seconds",
            KEPT,
        ),
        "offset": NOT_THE_JOURNAL,
        "damaged": NO_JOBS_RUN,
    },
    "checkpoints": {
        **_each("id trial_id job member step path sequence time bytes manifest value deleted_at", KEPT),
        "offset": NOT_THE_JOURNAL,
        "with_metric": "the sequence says it",
        "expendable": "it is decided again",
        "removed_at": "what was deleted was so before the archive was made",
    },
    "checkpoint_total": {"id": KEPT, "bytes": KEPT},
    "packed_curves": A_CACHE,
    "packed_keys": A_CACHE,
}  # fmt: skip

STORED = "output/checkpoints/3"
R = TypeVar("R", bound=Row)
MANIFEST = "a" * 64


def _filled(row: R, *, but: str = "") -> R:
    """A row none of whose columns has its default, which would be kept by chance."""
    same = [
        each.name
        for each in fields(row)  # type: ignore[arg-type]
        if each.name not in but.split() and getattr(row, each.name) == each.default
    ]
    assert not same, f"{type(row).__name__}: give {', '.join(same)} other values than the default"
    return row


def _fill(served: ServedManager) -> None:
    """An experiment with a value in every column of every table that is its own."""
    served.add_experiment(
        config={"trialScheduler": {"name": "ASHA"}},
        views=[SavedViewRow("e", "best", "trials", "sort=-value", NOW, "owner")],
        tables=[{"title": "Rungs", "columns": ["milestone", "trial"], "rows": [[1, 0]], "trial_columns": [1]}],
        next_position=9, active_seconds=7.5, ended_at=NOW + 9.0, max_trial_number=20, max_experiment_seconds=1e6,
        max_trial_seconds=5000.0, max_gpu_hours=3.5, priority=4, tags=["paper"], reason="stopped", error="none",
        metrics_told=3, revision=2, resumes=1, ended_trials=2, failed_trials=1, alike_failures=1, failure_cause="x",
        trials_without_final=1,
    )  # fmt: skip
    served.change_experiment(next_sequence_id=3)
    directory = served.experiment().directory
    trial_rows, job_rows, decision = _trial_rows(directory), _job_rows(directory), _decision(directory)
    imported = [{"parameter": {"lr": 0.125}, "value": {"default": 0.9}}, {"parameter": {"lr": 0.5}, "value": "NaN"}]

    def write(connection: sqlite3.Connection) -> None:
        for trial in trial_rows:
            trials.insert(connection, trial)
        for job in job_rows:
            jobs.insert(connection, job)
        dispatcher_inputs.record(connection, decision)
        dispatcher_inputs.append(connection, "e", 5, "ImportData", {"rows": imported[:1]})
        dispatcher_inputs.append(connection, "e", 6, "UpdateSearchSpace", {"search_space": {}})
        dispatcher_inputs.append(connection, "e", 7, "ImportData", {"rows": imported[1:]})
        dispatcher_inputs.save_state(connection, "e", 6, "state")

    served.write(write)
    served.write_reports(_write_reports)
    for trial_id, job_number in (("paused", 2), ("donor", 1)):
        served.write_file(trial_id, f"{STORED}/weights", b"0123", job=job_number)


def _trial_rows(directory: str) -> list[TrialRow]:
    """A PAUSED trial with a value in every column, the trial that it was cloned from, and one that it continued."""
    paused = TrialRow(
        "paused", "e", 1, TrialStatus.PAUSED, 7, {"lr": 0.25}, NOW, "paused by the user", {"rung": 1}, 3, "customized",
        3, 1, 2, NOW, 2, 0.5, 0.75, {"default": 0.75}, NOW + 1.0, NOW + 99.0, 1, "donor", "donor.1",
        f"{directory}/trials/0-donor/jobs/1/{STORED}", PausedBy.USER,
    )  # fmt: skip
    donor = TrialRow("donor", "e", 0, TrialStatus.SUCCEEDED, 0, {"lr": 0.5}, NOW, jobs=1)
    other = TrialRow("other", "e", 2, TrialStatus.SUCCEEDED, 2, {"lr": 0.5}, NOW, jobs=1)
    return [donor, _filled(paused), other]


def _job_rows(directory: str) -> list[TrialJobRow]:
    """A job with a value in every column, the one after it, and those of the other trials."""
    job = TrialJobRow(
        id="paused.2", trial_id="paused", experiment_id="e", number=2, token="token", status=TrialJobStatus.ENDED,
        parameter_id=7, parameters={"lr": 0.25}, stop_reason=EndReason.PAUSED, end_reason=EndReason.PAUSED,
        detail="paused", parent_job="paused.1", resumed_from_job="other.1", resumed_from_step=1,
        resume_checkpoint=f"{directory}/trials/2-other/jobs/1/{STORED}",
        placement=NodePlacement("gpu-1", (GpuSlot("GPU-1", 0),)).to_json(), node_id="gpu-1", pid=77, exit_code=3,
        signal=15, code_fingerprint="fingerprint", submitted_at=NOW + 1.0, started_at=NOW + 2.0, ended_at=NOW + 3602.0,
        start_reason="from checkpoint 3", resume_node_id="gpu-1", stop_position=5, save_until=NOW, resumes=1,
        counted_gpus=0.5, cpu_seconds=12.5, run_seconds=100.0, verdict_seconds=4.0, start_moment="boot 1.0",
        runs_since=NOW,
        checkpoints=[{"job_id": "other.1", "path": "p", "sequence": 1}], stopped_by="user",
    )  # fmt: skip
    own = replace(_filled(job, but="members"), id="paused.3", number=3, resumed_from_job="paused.2")
    own = replace(own, parent_job="paused.2", resumed_from_step=2)
    own = replace(own, resume_checkpoint=f"{directory}/trials/1-paused/jobs/2/{STORED}")
    bare = TrialJobRow("donor.1", "donor", "e", 1, "token", TrialJobStatus.ENDED, 0, {"lr": 0.5}, started_at=NOW)
    return [bare, replace(bare, id="other.1", trial_id="other", parameter_id=2), job, own]


def _decision(directory: str) -> DecisionRow:
    """The decision by which the PAUSED trial has continued another one, with a value in every column."""
    decision = DecisionRow(
        "e", 7, 4, DecisionKind.CLONE, "paused", NOW + 1.0, {"lr": 0.25}, {"s": 1}, "other", "other.1",
        f"{directory}/trials/2-other/jobs/1/{STORED}", "gpu-1", 1, 2, "in the lower quantile",
    )  # fmt: skip
    return _filled(decision)


def _write_reports(connection: sqlite3.Connection) -> None:
    """Reports of every kind, and checkpoints of which one is deleted."""
    reported = [
        MetricRow(1, "other", 1, 0, 0, "intermediate", 0, 1, None, 0.25, NOW + 5.0, 30.0),
        MetricRow(2, "paused", 2, 0, 0, "intermediate", 1, 2, None, {"default": 0.5, "loss": 1.5}, NOW + 3.0, 60.0),
        MetricRow(3, "paused", 2, 1, 0, "intermediate", 1, 2, None, "NaN", NOW + 3.0, 61.0),
        MetricRow(4, "paused", 3, 0, 0, "final", 0, None, None, {"default": 0.75}, NOW + 4.0, 62.0),
        MetricRow(5, "paused", 3, 0, 0, "lost", 0, None, None, 3.0, NOW + 4.0),
    ]
    stored = CheckpointRow(1, "paused", 2, 0, 90, 2, STORED, 2, NOW + 3.5, 1, 1024, MANIFEST, None, 0.5, 2, None)
    gone = replace(stored, id=2, path="output/checkpoints/2", offset=40, deleted_at=NOW + 4.0, removed_at=NOW + 5.0)
    of_donor = replace(stored, id=3, trial_id="donor", job=1, offset=7, value=0.25)
    starts = {
        ("other", 1): JournalStart(0, None, NOW),
        ("paused", 2): JournalStart(1, None, NOW + 2.0),
        ("paused", 3): JournalStart(2, 2, NOW + 2.0),
    }
    metrics.insert(connection, reported, starts=starts)
    checkpoints.load(connection, [stored, gone, of_donor])
    connection.execute("UPDATE checkpoints SET with_metric = 1, expendable = 2")


Tables = dict[str, list[dict[str, Any]]]


def _read(connection: sqlite3.Connection) -> Tables:
    """All tables, with all columns."""
    names = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    ]
    found: Tables = {}
    for name in names:
        cursor = connection.execute(f'SELECT * FROM "{name}"')
        columns = [each[0] for each in cursor.description]
        found[name] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    return found


def _columns(connection: sqlite3.Connection) -> dict[str, list[str]]:
    found = connection.execute(
        "SELECT schema.name, info.name FROM sqlite_schema AS schema, pragma_table_info(schema.name) AS info "
        "WHERE schema.type = 'table'"
    )
    columns: dict[str, list[str]] = {}
    for table, column in found:
        columns.setdefault(table, []).append(column)
    return columns


def _everything(served: ServedManager, look: Callable[[sqlite3.Connection], dict[str, Any]]) -> dict[str, Any]:
    async def read_metrics() -> dict[str, Any]:
        database = await served.manager.metrics("e")
        return await database.read(look)

    return served.read(look) | served.call(read_metrics())


def test_every_table_and_every_column_has_a_rule(served: ServedManager) -> None:
    served.add_experiment()
    columns = _everything(served, _columns)
    assert not columns.keys() - RULES.keys(), "tables without a rule"
    assert not RULES.keys() - columns.keys(), "rules without a table"
    for table, rule in RULES.items():
        if not isinstance(rule, str):
            assert sorted(rule) == sorted(columns[table]), f"columns of {table}"


def test_what_is_kept_is_the_same_after_save_and_load(served: ServedManager, invoke, tmp_path: Path) -> None:
    _fill(served)
    before = _everything(served, _read)
    empty = [name for name, rule in RULES.items() if not isinstance(rule, str) and not before[name]]
    assert not empty, f"nothing is in {empty}"
    path = tmp_path / "e.zip"
    invoke("experiment", "save", "e", "-p", str(path), code=0)
    with Client(home=served.home) as client:
        imported = client.imported_results("e")
    invoke("experiment", "delete", "e", "-y", code=0)
    invoke("experiment", "load", "-p", str(path), code=0)
    after = _everything(served, _read)
    for table, rule in RULES.items():
        if not isinstance(rule, str):
            kept = [column for column, reason in rule.items() if reason == KEPT]
            assert _shown(after[table], kept) == _shown(before[table], kept), table
    assert served.experiment().status is ExperimentStatus.STOPPED
    inputs = [InputRow(**row | {"payload": json.loads(row["payload"])}) for row in after["dispatcher_inputs"]]
    given = [row for entry in inputs if entry.kind == "ImportData" for row in entry.payload["rows"]]
    assert [row for row in given if row in imported] == imported
    assert len(imported) == 2


def _shown(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """The rows, as far as they are kept, in an order of their own."""
    return sorted(json.dumps({name: row[name] for name in columns}, sort_keys=True) for row in rows)


def test_what_was_loaded_can_be_saved_and_loaded_again(served: ServedManager, invoke, tmp_path: Path) -> None:
    _fill(served)
    for name in ("first", "second"):
        path = tmp_path / f"{name}.zip"
        invoke("experiment", "save", "e", "-p", str(path), code=0)
        invoke("experiment", "delete", "e", "-y", code=0)
        invoke("experiment", "load", "-p", str(path), code=0)
    rows = served.read(lambda c: dispatcher_inputs.imported(c, "e"))
    shown = [json.dumps(row, sort_keys=True) for row in rows]
    assert len(shown) == len(set(shown)), "no result is there twice"


def test_a_checkpoint_whose_files_are_not_in_the_archive_is_left_out_with_a_sentence(
    served: ServedManager, invoke, tmp_path: Path
) -> None:
    _fill(served)
    folder = Path(served.experiment().directory)
    (folder / "trials/0-donor/jobs/1" / STORED / "weights").unlink()
    path = tmp_path / "e.zip"
    invoke("experiment", "save", "e", "-p", str(path), code=0)
    invoke("experiment", "delete", "e", "-y", code=0)
    invoke("experiment", "load", "-p", str(path), code=0)
    found = _everything(served, _read)
    assert sorted(row["id"] for row in found["checkpoints"]) == [1, 2]
    notices = [json.loads(row["data"])["text"] for row in found["events"] if row["kind"] == "notice"]
    assert "loaded from an archive, with 3 trials; 1 checkpoint is left out, whose files are not here" in notices


def test_paths_of_checkpoints_are_those_of_the_folder_that_it_has_now(
    served: ServedManager, invoke, tmp_path: Path
) -> None:
    _fill(served)
    path = tmp_path / "e.zip"
    invoke("experiment", "save", "e", "-p", str(path), code=0)
    invoke("experiment", "delete", "e", "-y", code=0)
    invoke("experiment", "load", "-p", str(path), "--id", "again", code=0)
    now = Path(served.experiment("again").directory)
    trial = served.trial("paused")
    [second, third] = served.read(lambda c: jobs.of_trial(c, "paused"))
    assert trial.origin_checkpoint == f"{now}/trials/0-donor/jobs/1/{STORED}"
    assert second.resume_checkpoint == f"{now}/trials/2-other/jobs/1/{STORED}"
    assert third.resume_checkpoint == f"{now}/trials/1-paused/jobs/2/{STORED}"
    assert Path(str(third.resume_checkpoint), "weights").exists()


def test_a_paused_trial_of_a_loaded_experiment_continues_from_its_checkpoint(
    served: ServedManager, invoke, tmp_path: Path
) -> None:
    def save(form: TrialJobForm) -> list[Raw | Hang]:
        if form.number > 1:
            return [Hang()]
        folder = Path(form.directory, STORED)
        folder.mkdir(parents=True)
        (folder / "weights").write_text("1")
        record = {"kind": "checkpoint", "path": STORED, "with_metric": False, "time": NOW}
        return [Raw(0.0, json.dumps(record).encode() + b"\n"), Hang()]

    served.script = save
    served.create(maxTrialNumber=1)

    def checkpoint_count() -> int:
        with Client(home=served.home) as client:
            return sum(len(list(client.checkpoints(trial["id"]))) for trial in client.trials("e"))

    served.until(checkpoint_count)
    invoke("trial", "pause", "0", code=0)
    [trial_id] = served.read(lambda c: [row.id for row in trials.page(c, "e", limit=2).items])
    served.until(lambda: served.trial(trial_id).status is TrialStatus.PAUSED)
    invoke("stop", "e", code=0)
    served.until(lambda: served.experiment().status is ExperimentStatus.STOPPED)
    path = tmp_path / "e.zip"
    invoke("experiment", "save", "e", "-p", str(path), code=0)
    invoke("experiment", "delete", "e", "-y", code=0)
    invoke("experiment", "load", "-p", str(path), code=0)
    invoke("resume", "e", code=0)
    invoke("trial", "resume", trial_id, code=0)
    served.until(lambda: served.trial(trial_id).jobs == 2)
    [_, job] = served.read(lambda c: jobs.of_trial(c, trial_id))
    assert (job.start_reason, job.resumed_from_job) == ("from checkpoint 3 of job 1", f"{trial_id}.1")
