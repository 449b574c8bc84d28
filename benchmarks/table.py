"""The one table that all benchmarks print."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of the table. Figures are texts with their units."""

    work: str
    reference: str
    """What the reference reached in the same run, or what there is to say of it."""
    reached: str
    ratio: str
    target: str
    met: bool | None
    """None: there is no target to meet."""


HEADER = Row("work", "reference in the same run", "reached", "ratio", "to reach", None)


def render(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table that also reads well in a terminal."""
    body = [_cells(HEADER, "met"), *(_cells(row, {True: "yes", False: "no", None: "–"}[row.met]) for row in rows)]
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in body
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cells(row: Row, met: str) -> list[str]:
    return [row.work, row.reference, row.reached, row.ratio, row.target, met]


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """The median and, where there are several values, what lies at the ends: `58.1/s (55.0 to 60.2)`."""
    text = f"{median(values):,.{digits}f}{unit}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
    return text
