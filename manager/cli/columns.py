"""Which fields of a resource people see, and how numbers, times and statuses read."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from proctor.manager.cli.output import Column, TableRow
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus

IN_TABLES, IN_FULL = 4, 6
"""Significant digits of a number: among others in a table, and where one thing is shown."""
_LIVE = frozenset(status for status in TrialStatus if not status.is_terminal)
STYLES = {
    "RUNNING": "cyan",
    "SUCCEEDED": "green",
    "DONE": "green",
    "FAILED": "red",
    "ERROR": "bold red",
    "SYS_CANCELED": "red",
    "EARLY_STOPPED": "yellow",
    "USER_CANCELED": "yellow",
    "STOPPED": "yellow",
    "STOPPING": "yellow",
    "PAUSED": "yellow",
    "WAITING": "dim",
    "UNKNOWN": "dim",
    "CONNECTED": "green",
    "CONNECTING": "cyan",
    "SILENT": "yellow",
    "RELEASED": "yellow",
    "LOST": "red",
}


def number(value: Any, digits: int = IN_TABLES) -> str:
    """A number with so many significant digits, and all those before the decimal point; `-` for none."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    has_more = 10**digits - 0.5 <= abs(value) < 1e15
    return f"{value:.0f}" if has_more else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """`0.4s`, `12s`, `3m 05s`, `2h 10m`, `3d 04h`; `-` for none."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def size_text(size: int) -> str:
    """A number of bytes as people read it: `512 B`, `3.4 kB`, `120.0 MB`, `1,204.0 GB`."""
    if size < 1000:
        return f"{size} B"
    unit, name = next((found for found in ((1e9, "GB"), (1e6, "MB")) if size >= found[0]), (1e3, "kB"))
    return f"{size / unit:,.1f} {name}"


def moment(text: str | None) -> datetime | None:
    """The moment of an RFC 3339 time."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


def local_time(text: str | None) -> str:
    """A time as the clock on the wall shows it; `-` for none."""
    found = moment(text)
    return "-" if found is None else found.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def elapsed(row: TableRow) -> float | None:
    """Return how many seconds a trial or a job has run, as counted by the manager if it can; None before it begins."""
    known: float | None = row.get("run_seconds")
    return since_start(row) if known is None or row.get("started_at") is None else known


def since_start(row: TableRow) -> float | None:
    """Seconds from its start to its end, or until now, as far as the clocks tell; None for what has not begun."""
    began = moment(row.get("started_at"))
    if began is None:
        return None
    ended = moment(row.get("ended_at")) or now()
    return max((ended - began).total_seconds(), 0.0)


def parameters(row: TableRow, digits: int = IN_TABLES) -> str:
    """`lr=0.001 units=64`, and of a nested choice `model=mlp model.units=64`; JSON for what is no mapping: a tuner of
    the user's may propose anything."""
    found = row["parameters"]
    return _named(found, digits) if isinstance(found, dict) else json.dumps(found, ensure_ascii=False)


def _named(values: dict[str, Any], digits: int) -> str:
    from proctor.sdk.client.flattening import flatten

    return " ".join(f"{name}={_value(value, digits)}" for name, value in flatten(values).items())


def _value(value: Any, digits: int = IN_TABLES) -> str:
    """A text as it is where it is one word, anything else as JSON."""
    if isinstance(value, float):
        return number(value, digits)
    is_word = isinstance(value, str) and value and not any(letter.isspace() for letter in value)
    return value if is_word else json.dumps(value, ensure_ascii=False)


def progress(experiment: TableRow) -> str:
    """Ended trials of all that are wanted: `12/24`, or `12` without a limit."""
    counts = experiment["trial_counts"]
    ended = sum(count for status, count in counts.items() if status not in _LIVE)
    limit = experiment["max_trial_number"]
    return f"{ended}/{limit}" if limit is not None else str(ended)


def remaining(experiment: TableRow, active_seconds: float) -> float | None:
    """The seconds until an experiment ends, if trials end as often as they have so far; None where nothing tells, or
    where it should have ended.

    :param active_seconds: how long it has run by now.
    """
    status, limit = ExperimentStatus(experiment["status"]), experiment["max_trial_number"]
    if not status.counts_time:
        return None
    counted = experiment["trial_counts"]
    live = sum(counted.get(each, 0) for each in _LIVE)
    ended = sum(counted.values()) - live
    left = None if limit is None else max(limit - ended, 0)
    found: list[float] = []
    if not status.creates_trials:
        left = live
    elif experiment["max_experiment_duration_seconds"] is not None:
        found = [max(experiment["max_experiment_duration_seconds"] - active_seconds, 0.0)]
    if ended and left is not None:
        found.append(left * active_seconds / ended)
    return min(found, default=None) or None


def eta(experiment: TableRow, active_seconds: float) -> str:
    """`~12m 05s`: the time that remains; `-` where that is not known."""
    seconds = remaining(experiment, active_seconds)
    return "-" if seconds is None else f"~{duration(seconds)}"


def gpu_hours(row: TableRow, digits: int = IN_TABLES) -> str:
    """What its trials have used, up to now."""
    return _hours(row["usage"]["gpu_hours"], digits)


def cpu_hours(row: TableRow, digits: int = IN_TABLES) -> str:
    """Processor time of its jobs that have ended; `at least 1.5` where that of some is missing."""
    usage = row["usage"]
    return f"{'at least ' if usage['unmeasured_jobs'] else ''}{_hours(usage['cpu_hours'], digits)}"


def _hours(value: float, digits: int) -> str:
    return "<0.01" if 0 < value < 0.01 else number(value, digits)


def priority(experiment: TableRow) -> str:
    """`5`, and `5, preemptible` where its trials may be stopped for more important ones."""
    return f"{experiment['priority']}{', preemptible' if experiment['config'].get('preemptible') else ''}"


def tags(experiment: TableRow) -> str:
    """`baseline, paper`; empty without tags, and of managers that know none."""
    return ", ".join(experiment.get("tags") or ())


def outcome(experiment: TableRow) -> str:
    """The progress, with a word that none of the trials has succeeded: `12/12 failed`."""
    if not experiment.get("failure"):
        return progress(experiment)
    failed = any(TrialStatus(status).has_failed for status, count in experiment["trial_counts"].items() if count)
    return f"{progress(experiment)} {'failed' if failed else 'no success'}"


def reason(experiment: TableRow) -> str:
    """Why nothing has succeeded, if nothing has; then why the experiment is where it is."""
    return "; ".join(text for text in (experiment.get("failure"), experiment["reason"]) if text)


def counts(experiment: TableRow) -> str:
    """`2 running, 9 succeeded`; empty without trials."""
    found = experiment["trial_counts"].items()
    return ", ".join(f"{count} {status.lower().replace('_', ' ')}" for status, count in found if count)


def best(experiment: TableRow) -> str:
    """The best value, its trial, and which values are better; `-` for none."""
    found = experiment["best"]
    if found is None:
        return "-"
    return f"{number(found['value'], IN_FULL)} (trial {found['sequence_id']}, {experiment['objective']['direction']})"


def best_trial(experiment: TableRow) -> str:
    """`best 0.98 max, trial 17: lr=0.001`; empty for none."""
    found = experiment["best"]
    return f"best {best_value(experiment)}, trial {found['sequence_id']}: {parameters(found)}" if found else ""


def _best_or_why_not(experiment: TableRow) -> str:
    why = experiment.get("no_best_reason")
    return f"- ({why})" if why else best(experiment)


def best_value(experiment: TableRow) -> str:
    """The best value, with `max` or `min`; `-` for none."""
    found = experiment["best"]
    return "-" if found is None else f"{number(found['value'])} {experiment['objective']['direction'][:3]}"


def trial_value(trial: TableRow) -> str:
    """The final metric; while there is none, the latest intermediate one, marked with `~`."""
    if trial["final_value"] is not None or trial["final_data"] is not None or trial["latest_value"] is None:
        return metric(trial["final_value"], trial["final_data"])
    return f"~{number(trial['latest_value'])}"


def metric(value: Any, reported: Any, digits: int = IN_TABLES) -> str:
    """The number of a report; of one that is not a finite number (NaN, lost, unreadable) what is known instead."""
    if value is None and reported is not None:
        from proctor.sdk.client.flattening import metric_fields

        value = metric_fields(reported)["value"]
    return number(value, digits)


def _status_style(row: TableRow) -> str:
    return STYLES.get(str(row["status"]), "")


def _failure_style(row: TableRow) -> str:
    return "bold red" if row.get("failure") else ""


EXPERIMENTS = (
    Column("ID", lambda row: row["id"]),
    Column("NAME", lambda row: row["name"], gives_way=True),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("TRIALS", outcome, _failure_style, right=True),
    Column("BEST", best_value, right=True),
    Column("PRIORITY", lambda row: str(row["priority"]), right=True, left_out=2),
    Column("CREATED", lambda row: local_time(row["created_at"])[:16], left_out=1),
    Column("REASON", reason, _failure_style, wraps=True),
)

TAGGED_EXPERIMENTS = (*EXPERIMENTS[:2], Column("TAGS", tags, gives_way=True), *EXPERIMENTS[2:])

EXPERIMENTS_IN_TOP = (
    *EXPERIMENTS[:4],
    Column("TIME", lambda row: duration(row["active_seconds"]), right=True, left_out=1),
    Column("ETA", lambda row: eta(row, row["active_seconds"]), right=True),
    Column("BEST", best_trial, wraps=True),
    EXPERIMENTS[-1],
)

EXPERIMENT = (
    Column("id", lambda row: row["id"]),
    Column("name", lambda row: row["name"]),
    Column("tags", tags),
    Column("archived", lambda row: "yes" if row.get("archived") else ""),
    Column("status", lambda row: row["status"], _status_style),
    Column("reason", lambda row: row["reason"]),
    Column("failure", lambda row: row.get("failure") or "", _failure_style),
    Column("trials", lambda row: f"{progress(row)} ended" + (f" ({counts(row)})" if counts(row) else "")),
    Column("best", _best_or_why_not),
    Column("best parameters", lambda row: parameters(row["best"], IN_FULL) if row["best"] else ""),
    Column("objective", lambda row: row["objective"]["direction"]),
    Column("trial concurrency", lambda row: str(row["trial_concurrency"])),
    Column("max trial number", lambda row: str(row["max_trial_number"] or "no limit")),
    Column("max duration", lambda row: _limit(row["max_experiment_duration_seconds"])),
    Column("max trial duration", lambda row: _limit(row["max_trial_duration_seconds"])),
    Column("max GPU-hours", lambda row: "no limit" if row["max_gpu_hours"] is None else number(row["max_gpu_hours"])),
    Column("GPU-hours", lambda row: gpu_hours(row, IN_FULL)),
    Column("CPU-hours", lambda row: cpu_hours(row, IN_FULL)),
    Column("priority", priority),
    Column("rules", lambda row: str(row.get("rules", 1))),  # a manager of an earlier version names none
    Column("created", lambda row: local_time(row["created_at"])),
    Column("started", lambda row: local_time(row["started_at"])),
    Column("ended", lambda row: local_time(row["ended_at"])),
    Column("elapsed", lambda row: duration(row["active_seconds"])),
    Column("remaining", lambda row: eta(row, row["active_seconds"]).strip("-")),
    Column("files", lambda row: row["directory"]),
    Column("page", lambda row: row["url"]),
    Column("notices", lambda row: "\n".join(row["notices"])),
    Column("error", lambda row: row["error"]),
)

TRIALS = (
    Column("NO.", lambda row: str(row["sequence_id"]), right=True),
    Column("ID", lambda row: row["id"]),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("VALUE", trial_value, right=True),
    Column("REPORTS", lambda row: str(row["intermediate_count"]), right=True, left_out=3),
    Column("TIME", lambda row: duration(elapsed(row)), right=True, left_out=1),
    Column("NODE", lambda row: row["node_id"] or "-", left_out=2),
    Column("PARAMETERS", parameters, gives_way=True),
    Column("REASON", lambda row: row["reason"], wraps=True),
)

TRIAL = (
    Column("id", lambda row: row["id"]),
    Column("experiment", lambda row: row["experiment_id"]),
    Column("number", lambda row: str(row["sequence_id"])),
    Column("status", lambda row: row["status"], _status_style),
    Column("reason", lambda row: row["reason"]),
    Column("parameters", lambda row: parameters(row, IN_FULL)),
    Column("source", lambda row: row["source"]),
    Column("origin", lambda row: row.get("origin_job_id") or row.get("origin_trial_id") or "-"),
    Column("paused by", lambda row: row.get("paused_by") or "-"),
    Column("final metric", lambda row: metric(row["final_value"], row["final_data"], IN_FULL)),
    Column("other metrics", lambda row: other_metrics(row["final_data"])),
    Column("latest metric", lambda row: number(row["latest_value"], IN_FULL)),
    Column("reports", lambda row: str(row["intermediate_count"])),
    Column("jobs", lambda row: str(row["jobs"])),
    Column("node", lambda row: row["node_id"] or "-"),
    Column("created", lambda row: local_time(row["created_at"])),
    Column("started", lambda row: local_time(row["started_at"])),
    Column("ended", lambda row: local_time(row["ended_at"])),
    Column("time", lambda row: duration(elapsed(row))),
    Column("GPU-hours", lambda row: gpu_hours(row, IN_FULL)),
    Column("CPU-hours", lambda row: cpu_hours(row, IN_FULL)),
    Column("files", lambda row: row["directory"]),
)

JOBS = (
    Column("JOB", lambda row: row["id"]),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("END", lambda row: row["end_reason"] or "-"),
    Column("EXIT", lambda row: f"signal {row['signal']}" if row["signal"] else number(row["exit_code"])),
    Column("NODE", lambda row: row["node_id"] or "-"),
    Column("TIME", lambda row: duration(elapsed(row)), right=True),
    Column("START", lambda row: row.get("start_reason") or "", wraps=True),
    Column("DETAIL", lambda row: row["detail"], wraps=True),
)

FAILURES = (
    Column("TRIALS", lambda row: str(row["trials"]), right=True),
    Column("END", lambda row: row["end_reason"] or "-", left_out=1),
    Column("NODES", lambda row: " ".join(f"{node['node_id'] or '-'}:{node['trials']}" for node in row["nodes"])),
    Column("EXAMPLE", lambda row: str(row["example"]["sequence_id"]), right=True),
    Column("CAUSE", lambda row: row["detail"] or "no reason was recorded", wraps=True),
)

IMPORTANCE = (
    Column("PARAMETER", lambda row: row["name"]),
    Column("IMPORTANCE", lambda row: f"{row['importance']:.1%}", right=True),
)


def gpus_in_use(node: TableRow) -> str:
    """`3/4`: GPUs that are held, of all; `-` where it is not known."""
    devices = node["facts"].get("devices")
    return "-" if devices is None else f"{sum(bool(device['held_by']) for device in devices)}/{len(devices)}"


NODES = (
    Column("ID", lambda row: row["id"]),
    Column("KIND", lambda row: row["kind"], left_out=2),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("ADDRESS", lambda row: row["address"] or str(row["facts"].get("hostname") or "-"), gives_way=True),
    Column("JOBS", lambda row: str(len(row["reservations"])), right=True),
    Column("GPUS", gpus_in_use, right=True),
    Column("GPU-HOURS", lambda row: gpu_hours(row), right=True, left_out=3),
    Column("CPU-HOURS", lambda row: cpu_hours(row), right=True, left_out=4),
    Column("SEEN", lambda row: local_time(row["seen_at"]), left_out=1),
    Column("HOLD", lambda row: row["hold"], lambda row: "yellow", wraps=True),
    Column("REASON", lambda row: row["reason"] or str(row["facts"].get("driver_note", "")), wraps=True),
)

DEVICES = (
    Column("NODE", lambda row: row["node"]),
    Column("GPU", lambda row: str(row["index"]), right=True),
    Column("NAME", lambda row: row["name"], gives_way=True),
    Column("MIB USED", lambda row: f"{row['memory_used_mb']} of {row['memory_total_mb']}", right=True),
    Column("BUSY", lambda row: f"{row['utilization']} %", right=True),
    Column("HELD BY", lambda row: ", ".join(row["held_by"]), wraps=True),
)


def _newest(values: Sequence[Any]) -> Any:
    """The newest sample; None where there is none."""
    return values[-1] if values else None


def _memory_used(row: TableRow) -> str:
    used, total = _newest(row["memory_used_mb"]), row["memory_total_mb"]
    return "-" if used is None else f"{used}" + (f" of {total}" if total else "")


NODE_LOAD = (
    Column("LOAD", lambda row: "-" if (found := _newest(row["load"])) is None else f"{found:.2f}"),
    Column("CPUS", lambda row: str(row["cpus"] or "-")),
    Column("MIB USED", _memory_used),
)

JOBS_ON_NODE = (
    Column("GPU", lambda row: ",".join("?" if i is None else str(i) for i in row["indexes"]) or "-"),
    Column("EXPERIMENT", lambda row: row["experiment_id"]),
    Column("TRIAL", lambda row: str(row["sequence_id"]), right=True),
    Column("JOB", lambda row: row["job_id"], left_out=1),
    Column("STARTED", lambda row: local_time(row["started_at"])),
    Column("ENDED", lambda row: local_time(row["ended_at"])),
    Column("REASON", lambda row: row["end_reason"] or "running"),
)

EVENTS = (
    Column("TIME", lambda row: local_time(row["time"])),
    Column("KIND", lambda row: row["kind"]),
    Column("TRIAL", lambda row: "-" if row["sequence_id"] is None else str(row["sequence_id"]), right=True),
    Column("WHO", lambda row: actor_text(row)),
    Column("WHAT", lambda row: event_text(row), wraps=True),
)

FOUND_LINES = (
    Column("TRIAL", lambda row: str(row["sequence_id"]), right=True),
    Column("JOB", lambda row: str(row["job"]), right=True),
    Column("STREAM", lambda row: row["stream"]),
    Column("LINE", lambda row: str(row["line"]), right=True),
    Column("TEXT", lambda row: row["text"].strip(), wraps=True),
)


def actor_text(row: TableRow) -> str:
    """Who caused an event, and how the request came."""
    actor = row["actor"]
    if actor is None:
        return "-"
    return f"{actor['name']} ({actor['via']})" if actor["via"] else str(actor["name"])


def event_text(row: TableRow) -> str:
    """The data of an event for people."""
    data = row["data"]
    if not isinstance(data, dict):
        return str(data)
    named = [
        f"{key} {_fact(value)}" for key, value in data.items() if key not in _EVENT_WORDS and value not in ("", None)
    ]
    said = [str(data[key]) for key in ("status", "end_reason") if data.get(key)]
    clause = data.get("text") or data.get("reason") or data.get("detail") or ""
    return ": ".join(filter(None, [" ".join(said) or ", ".join(named), str(clause)]))


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


_EVENT_WORDS = frozenset({"status", "end_reason", "text", "reason", "detail", "sequence_id"})


def _limit(seconds: float | None) -> str:
    return "no limit" if seconds is None else duration(seconds)


def loss(row: TableRow) -> str:
    """A report of kind `lost`: how many, or why that is not known."""
    if row["value"] is None:
        return str(row["data"])
    reports = "1 report" if row["value"] == 1 else f"{row['value']:.0f} reports"
    return f"{reports} lost: the trial's disk was full"


def other_metrics(reported: Any) -> str:
    """`loss=0.31 accuracy=0.97`: what a report has beside its number; empty for none."""
    return _named(_others(reported), IN_FULL)


def _others(reported: Any) -> dict[str, Any]:
    """By dotted name; none for a report that is a number, or that is lost or unreadable."""
    from proctor.sdk.client.flattening import metric_fields

    fields = metric_fields(reported) if isinstance(reported, dict) else {}
    return {name.removeprefix("value."): value for name, value in fields.items() if name != "value"}


_KEPT = {
    "GIVEN": "given to a job",
    "DONOR": "a trial began with it",
    "COPIED": "being copied",
    "NEWEST": "newest",
    "BEST": "best",
    "ALL": "all are",
    "FOREIGN": "not the SDK's",
}


def why_kept(row: TableRow) -> str:
    """Why a checkpoint is kept, or that it is deleted."""
    if row["deleted_at"] is not None:
        return "deleted"
    return ", ".join(_KEPT.get(reason, reason.lower()) for reason in row["kept"]) or "being deleted"


CHECKPOINTS = (
    Column("ID", lambda row: str(row["id"]), right=True),
    Column("JOB", lambda row: str(row["job"]), right=True),
    Column("RANK", lambda row: str(row["member"]), right=True, left_out=2),
    Column("CHECKPOINT", lambda row: row["path"]),
    Column("STEP", lambda row: "-" if row["step"] is None else str(row["step"]), right=True),
    Column("POINTS", lambda row: str(row["sequence"]), right=True, left_out=3),
    Column("SIZE", lambda row: "-" if row["size_bytes"] is None else size_text(row["size_bytes"]), right=True),
    Column("METRIC", lambda row: number(row["value"]), right=True, left_out=4),
    Column("KEPT", why_kept),
    Column("HERE", lambda row: "yes" if row["is_here"] else "no", left_out=5),
    Column("TIME", lambda row: local_time(row["time"]), left_out=1),
)

METRICS = (
    Column("TIME", lambda row: local_time(row["time"]), left_out=3),
    Column("JOB", lambda row: str(row["job"]), right=True, left_out=1),
    Column("RANK", lambda row: str(row["member"]), right=True, left_out=2),
    Column("KIND", lambda row: row["kind"]),
    Column("NO.", lambda row: str(row["sequence"]), right=True),
    Column("STEP", lambda row: "-" if row["step"] is None else str(row["step"]), right=True),
    Column("VALUE", lambda row: metric(row["value"], row["data"]), right=True, gives_way=True),
)


def metrics_columns(rows: Iterable[TableRow]) -> tuple[Column, ...]:
    """The columns of reports; each further key that one of them has is a column of its own."""
    keys = dict.fromkeys(name for row in rows for name in _others(row["data"]))
    return (*METRICS, *(_metric_column(key, "data") for key in keys))


def _metric_column(key: str, data: str) -> Column:
    return Column(key, lambda row: _cell(_others(row[data]).get(key)), right=True)


def _parameter_column(name: str) -> Column:
    return Column(name, lambda row: _cell(_flat_parameters(row).get(name)))


def _cell(value: Any) -> str:
    return "-" if value is None else _value(value)


def _flat_parameters(row: TableRow) -> dict[str, Any]:
    from proctor.sdk.client.flattening import flatten

    return flatten(row["parameters"]) if isinstance(row["parameters"], dict) else {}


FURTHER_TRIAL_COLUMNS = (
    Column("CREATED", lambda row: local_time(row["created_at"])),
    Column("STARTED", lambda row: local_time(row["started_at"])),
    Column("ENDED", lambda row: local_time(row["ended_at"])),
    Column("LATEST", lambda row: number(row["latest_value"]), right=True),
    Column("SOURCE", lambda row: row["source"]),
    Column("ORIGIN", lambda row: row.get("origin_job_id") or row.get("origin_trial_id") or "-"),
    Column("PAUSED-BY", lambda row: row.get("paused_by") or "-"),
    Column("JOBS", lambda row: str(row["jobs"]), right=True),
    Column("GPU-HOURS", lambda row: gpu_hours(row), right=True),
    Column("CPU-HOURS", lambda row: cpu_hours(row), right=True),
    Column("FILES", lambda row: row["directory"]),
)
"""What `trial ls --columns` may name beside TRIALS."""


def trial_columns(names: Sequence[str], trials: Sequence[TableRow]) -> tuple[Column, ...]:
    """The columns with these names, as they were typed: `no`, `id`, `value`, …, `parameter.lr`, `value.loss`.

    Raises ValueError for a name that is none; for a parameter or key of a metric, if no trial has it.
    """
    known = {column.title.lower().rstrip("."): column for column in (*TRIALS, *FURTHER_TRIAL_COLUMNS)}
    named = {f"parameter.{name}": _parameter_column(name) for row in trials for name in _flat_parameters(row)}
    named |= {f"value.{key}": _metric_column(key, "final_data") for row in trials for key in _others(row["final_data"])}
    chosen = []
    for name in names:
        column = named.get(name) or known.get(name.lower())
        if column is None and (trials or not name.startswith(("parameter.", "value."))):
            raise ValueError(f"expected some of {', '.join([*known, *sorted(named)])}; found {name!r}")
        if column is not None:
            chosen.append(replace(column, left_out=0))
    return tuple(chosen)
