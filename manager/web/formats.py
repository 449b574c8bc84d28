"""How values read on the page."""

import json
from collections.abc import Mapping
from typing import Any

from proctor.manager.api.json_types import utc
from proctor.manager.api.models import Usage


def show_number(value: Any) -> str:
    """Five significant digits; words stay words; nothing is a dash."""
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def show_value(value: Any) -> str:
    """A parameter's value on one line."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return show_number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def named(parameters: Any) -> Mapping[str, Any]:
    """Parameters by name; what a tuner of the user's proposed beside that is one value."""
    return parameters if isinstance(parameters, Mapping) else {"value": parameters}


def show_loss(count: float | None, why: Any) -> str:
    """A loss of reports: how many, or why that is not known."""
    return str(why) if count is None else f"{count:.0f} reports lost: the trial's disk was full"


def show_duration(seconds: float | None) -> str:
    """45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_cpu_hours(usage: Usage) -> str:
    """Processor time in hours; "at least" where that of some jobs is missing."""
    hours = "<0.01" if 0 < usage.cpu_hours < 0.01 else show_number(usage.cpu_hours)
    return f"{'at least ' if usage.unmeasured_jobs else ''}{hours}"


def between(started: float | None, ended: float | None, now: float) -> str:
    """How long something took, or takes until now."""
    return "–" if started is None else show_duration((now if ended is None else ended) - started)


def show_time(seconds: float | None) -> str:
    """A moment in UTC; the script turns it into the reader's own time."""
    return "" if seconds is None else utc(seconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(seconds: float | None) -> str:
    """A moment for the `datetime` attribute."""
    return "" if seconds is None else utc(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def query_text(values: Mapping[str, Any]) -> str:
    """A query string of the values that are there, with its question mark."""
    from urllib.parse import urlencode

    present = {name: value for name, value in values.items() if value}
    return f"?{urlencode(present)}" if present else "?"
