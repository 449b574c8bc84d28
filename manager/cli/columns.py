"""Which fields of a resource people see, and how numbers, times and statuses read."""

import json
from datetime import UTC, datetime
from typing import Any

from proctor.manager.cli.output import Column, TableRow
from proctor.manager.lifecycle.states import TrialStatus

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


def number(value: Any) -> str:
    """A metric with six significant digits; `-` for none."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


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


def moment(text: str | None) -> datetime | None:
    """The moment of an RFC 3339 time."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


def local_time(text: str | None) -> str:
    """A time as the clock on the wall shows it; `-` for none."""
    found = moment(text)
    return "-" if found is None else found.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def elapsed(row: TableRow) -> float | None:
    """Seconds from its start to its end, or until now; None for what has not begun."""
    began = moment(row.get("started_at"))
    if began is None:
        return None
    ended = moment(row.get("ended_at")) or datetime.now(UTC)
    return (ended - began).total_seconds()


def parameters(row: TableRow) -> str:
    """`lr=0.001 units=64`; JSON for what is no mapping: a tuner of the user's may propose anything."""
    found = row["parameters"]
    if not isinstance(found, dict):
        return json.dumps(found, ensure_ascii=False)
    return " ".join(f"{name}={number(value) if isinstance(value, float) else value}" for name, value in found.items())


def progress(experiment: TableRow) -> str:
    """Ended trials of all that are wanted: `12/24`, or `12` without a limit."""
    counts = experiment["trial_counts"]
    ended = sum(count for status, count in counts.items() if status not in _LIVE)
    limit = experiment["max_trial_number"]
    return f"{ended}/{limit}" if limit is not None else str(ended)


def outcome(experiment: TableRow) -> str:
    """The progress, with a word that none of the trials has succeeded: `12/12 failed`."""
    if not experiment.get("failure"):
        return progress(experiment)
    failed = any(experiment["trial_counts"].get(status) for status in ("FAILED", "SYS_CANCELED"))
    return f"{progress(experiment)} {'failed' if failed else 'no success'}"


def reason(experiment: TableRow) -> str:
    """Why nothing has succeeded, if nothing has; then why the experiment is where it is."""
    return "; ".join(text for text in (experiment.get("failure"), experiment["reason"]) if text)


def counts(experiment: TableRow) -> str:
    """`2 running, 9 succeeded`; empty without trials."""
    return ", ".join(f"{count} {status.lower()}" for status, count in experiment["trial_counts"].items() if count)


def best(experiment: TableRow) -> str:
    """The best value, its trial, and which values are better; `-` for none."""
    found = experiment["best"]
    if found is None:
        return "-"
    return f"{number(found['value'])} (trial {found['sequence_id']}, {experiment['objective']['direction']})"


def _best_or_why_not(experiment: TableRow) -> str:
    why = experiment.get("no_best_reason")
    return f"- ({why})" if why else best(experiment)


def best_value(experiment: TableRow) -> str:
    """The best value, with `max` or `min`; `-` for none."""
    found = experiment["best"]
    return "-" if found is None else f"{number(found['value'])} {experiment['objective']['direction'][:3]}"


def trial_value(trial: TableRow) -> str:
    """The final metric; while there is none, the latest intermediate one, marked with `~`."""
    if trial["final_value"] is not None or trial["latest_value"] is None:
        return number(trial["final_value"])
    return f"~{number(trial['latest_value'])}"


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
    Column("CREATED", lambda row: local_time(row["created_at"])[:16]),
    Column("REASON", reason, _failure_style, gives_way=True),
)

EXPERIMENT = (
    Column("id", lambda row: row["id"]),
    Column("name", lambda row: row["name"]),
    Column("status", lambda row: row["status"]),
    Column("reason", lambda row: row["reason"]),
    Column("failure", lambda row: row.get("failure") or ""),
    Column("trials", lambda row: f"{progress(row)} ended" + (f" ({counts(row)})" if counts(row) else "")),
    Column("best", _best_or_why_not),
    Column("best parameters", lambda row: parameters(row["best"]) if row["best"] else ""),
    Column("objective", lambda row: row["objective"]["direction"]),
    Column("trial concurrency", lambda row: str(row["trial_concurrency"])),
    Column("max trial number", lambda row: str(row["max_trial_number"] or "no limit")),
    Column("max duration", lambda row: _limit(row["max_experiment_duration_seconds"])),
    Column("max trial duration", lambda row: _limit(row["max_trial_duration_seconds"])),
    Column("created", lambda row: local_time(row["created_at"])),
    Column("started", lambda row: local_time(row["started_at"])),
    Column("ended", lambda row: local_time(row["ended_at"])),
    Column("elapsed", lambda row: duration(row["active_seconds"])),
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
    Column("REPORTS", lambda row: str(row["intermediate_count"]), right=True),
    Column("TIME", lambda row: duration(elapsed(row)), right=True),
    Column("PARAMETERS", parameters, gives_way=True),
    Column("REASON", lambda row: row["reason"], gives_way=True),
)

TRIAL = (
    Column("id", lambda row: row["id"]),
    Column("experiment", lambda row: row["experiment_id"]),
    Column("number", lambda row: str(row["sequence_id"])),
    Column("status", lambda row: row["status"]),
    Column("reason", lambda row: row["reason"]),
    Column("parameters", parameters),
    Column("source", lambda row: row["source"]),
    Column("final metric", lambda row: number(row["final_value"])),
    Column("latest metric", lambda row: number(row["latest_value"])),
    Column("reports", lambda row: str(row["intermediate_count"])),
    Column("jobs", lambda row: str(row["jobs"])),
    Column("node", lambda row: row["node_id"] or "-"),
    Column("created", lambda row: local_time(row["created_at"])),
    Column("started", lambda row: local_time(row["started_at"])),
    Column("ended", lambda row: local_time(row["ended_at"])),
    Column("time", lambda row: duration(elapsed(row))),
    Column("files", lambda row: row["directory"]),
)

JOBS = (
    Column("JOB", lambda row: row["id"]),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("END", lambda row: row["end_reason"] or "-"),
    Column("EXIT", lambda row: f"signal {row['signal']}" if row["signal"] else number(row["exit_code"])),
    Column("NODE", lambda row: row["node_id"] or "-"),
    Column("TIME", lambda row: duration(elapsed(row)), right=True),
    Column("START", lambda row: row.get("start_reason") or "-", wraps=True),
    Column("DETAIL", lambda row: row["detail"], wraps=True),
)


def gpus_in_use(node: TableRow) -> str:
    """`3/4`: GPUs that are held, of all; `-` where it is not known."""
    devices = node["facts"].get("devices")
    return "-" if devices is None else f"{sum(bool(device['held_by']) for device in devices)}/{len(devices)}"


NODES = (
    Column("ID", lambda row: row["id"]),
    Column("KIND", lambda row: row["kind"]),
    Column("STATUS", lambda row: row["status"], _status_style),
    Column("ADDRESS", lambda row: row["address"] or str(row["facts"].get("hostname") or "-"), gives_way=True),
    Column("JOBS", lambda row: str(len(row["reservations"])), right=True),
    Column("GPUS", gpus_in_use, right=True),
    Column("SEEN", lambda row: local_time(row["seen_at"])),
    Column("HOLD", lambda row: row["hold"] or "-", lambda row: "yellow" if row["hold"] else "", wraps=True),
    Column("REASON", lambda row: row["reason"] or str(row["facts"].get("driver_note", "")), wraps=True),
)


def _limit(seconds: float | None) -> str:
    return "no limit" if seconds is None else duration(seconds)


def loss(row: TableRow) -> str:
    """A report of kind `lost`: how many, or why that is not known."""
    return str(row["data"]) if row["value"] is None else f"{row['value']:.0f} reports lost: the trial's disk was full"


METRICS = (
    Column("TIME", lambda row: local_time(row["time"])),
    Column("JOB", lambda row: str(row["job"]), right=True),
    Column("RANK", lambda row: str(row["member"]), right=True),
    Column("KIND", lambda row: row["kind"]),
    Column("NO.", lambda row: str(row["sequence"]), right=True),
    Column("STEP", lambda row: "-" if row["step"] is None else str(row["step"]), right=True),
    Column("VALUE", lambda row: number(row["value"]) if row["data"] is None else str(row["data"]), gives_way=True),
)
