"""Line charts as inline SVG. Colors come from the style sheet, so that they follow the reader's light or dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 30
MOST_POINTS = 600

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points in the order of x. `kind`: line, step (a value holds until the next) or dots."""

    kind: str
    points: Sequence[Point]


def chart(series: Sequence[Series], *, title: str, x_label: str) -> str:
    """An SVG element; '' when there is nothing to draw. Points that are not finite are left out."""
    drawn = [Series(one.kind, thin(finite(one.points))) for one in series]
    points = [point for one in drawn for point in one.points]
    if not points:
        return ""
    x_low, x_high = _widened(min(x for x, _ in points), max(x for x, _ in points))
    y_low, y_high = _widened(min(y for _, y in points), max(y for _, y in points))

    def place(point: Point) -> Point:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    body = [*_grid(place, (x_low, x_high), (y_low, y_high)), *(_draw(one, place) for one in drawn)]
    body.append(f'<text class="label" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{escape(x_label)}</text>')
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def finite(points: Sequence[Point]) -> list[Point]:
    """The points that can be drawn."""
    return [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points that look the same: of every stretch its first, lowest, highest and last."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most // 4))
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        stretch = range(begin, min(begin + size, len(points)))
        low = min(stretch, key=lambda index: points[index][1])
        high = max(stretch, key=lambda index: points[index][1])
        kept += [points[index] for index in sorted({stretch[0], low, high, stretch[-1]})]
    return kept


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers between low and high."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _widened(low: float, high: float) -> Point:
    """Some room around the values, so that nothing is divided by zero or drawn on the edge."""
    room = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return low - room, high + room


def _grid(place: Callable[[Point], Point], x_range: Point, y_range: Point) -> list[str]:
    parts = []
    for value in ticks(*y_range):
        _, y = place((x_range[0], value))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(*x_range, wanted=8):
        if value >= 0 and value == int(value):
            x, _ = place((value, y_range[0]))
            parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    return parts


def _draw(series: Series, place: Callable[[Point], Point]) -> str:
    placed = [place(point) for point in series.points]
    if series.kind == "dots" or len(placed) == 1:
        return "".join(f'<circle class="{series.kind}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in placed)
    if series.kind == "step":
        path = f"M{placed[0][0]} {placed[0][1]}" + "".join(f"H{x}V{y}" for x, y in placed[1:])
    else:
        path = "M" + "L".join(f"{x} {y}" for x, y in placed)
    return f'<path class="{series.kind}" d="{path}"/>'


def share_bar(shares: Sequence[tuple[str, int]], total: int) -> str:
    """A bar of colored parts: (name of a style class, how many); the rest up to `total` stays empty."""
    if total <= 0:
        return ""
    parts, x = [], 0.0
    for name, number in shares:
        width = number / total * 100
        parts.append(f'<rect class="{escape(name)}" x="{x:.3f}" width="{width:.3f}" height="4"/>')
        x += width
    label = ", ".join(f"{number} {name.lower()}" for name, number in shares) or "nothing yet"
    return (
        f'<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
