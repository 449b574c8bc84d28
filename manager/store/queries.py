"""The named statements of queries.sql, loaded once."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

_MARK = "\n-- name: "


@cache
def load_queries() -> Mapping[str, str]:
    """Every statement by its name."""
    text = (files("proctor.manager.store") / "queries.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split(_MARK)[1:])
    return {name.strip(): _strip_comments(body) for name, _, body in parts}


def query(name: str) -> str:
    """One statement without placeholders. Raises KeyError."""
    return load_queries()[name]


def query_with(name: str, columns: Iterable[str]) -> str:
    """One statement with its {columns}, {values} and {assignments} filled in; every column binds to its own name."""
    return _fill(name, tuple(columns))


@cache
def _fill(name: str, columns: tuple[str, ...]) -> str:
    return load_queries()[name].format(
        columns=", ".join(columns),
        values=", ".join(f":{column}" for column in columns),
        assignments=", ".join(f"{column} = :{column}" for column in columns),
    )


def _strip_comments(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip()
