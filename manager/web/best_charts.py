"""The charts of the best values, kept between visits: drawing one reads every trial that has ended with a value.

A page that is watched asks for its chart with every change. It is drawn again only when more trials have ended, and
while the experiment runs at most a twentieth of the time is spent on that, however many trials there are.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import trials
from proctor.manager.web.charts import Series, chart

SHARE = 1 / 20
MOST_KEPT = 32


@dataclass(frozen=True)
class _Drawn:
    """`ended`: how many trials had ended then; `due`: when it may be drawn again; in seconds."""

    ended: int
    due: float
    chart: str


class BestCharts:
    """`monotonic`: a clock in seconds. Used by several threads; what two of them draw at the same time is the same."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._drawn: dict[tuple[str, float], _Drawn] = {}

    def draw(
        self,
        connection: sqlite3.Connection,
        experiment: ExperimentRow,
        *,
        counts: Mapping[TrialStatus, int],
        maximize: bool,
    ) -> str:
        """The chart as SVG, '' without a value. Of an experiment that is over it is the newest one."""
        key = experiment.id, experiment.created_at
        ended = sum(number for status, number in counts.items() if status.is_terminal)
        began = self._monotonic()
        known = self._drawn.get(key)
        is_over = experiment.ended_at is not None
        if known is not None and (known.ended == ended or (began < known.due and not is_over)):
            return known.chart
        drawn = _chart(trials.best_curve(connection, experiment.id, maximize), ended)
        now = self._monotonic()
        self._keep(key, _Drawn(ended, now + (now - began) / SHARE, drawn))
        return drawn

    def _keep(self, key: tuple[str, float], drawn: _Drawn) -> None:
        self._drawn.pop(key, None)
        self._drawn[key] = drawn
        for oldest in list(self._drawn)[:-MOST_KEPT]:
            self._drawn.pop(oldest, None)


def _chart(curve: list[trials.CurvePoint], ended: int) -> str:
    """Every trial that has ended has its place on the axis, also one that has no value."""
    dots = [(float(point.place), point.value) for point in curve]
    best = [(float(point.place), point.best) for point in curve]
    if curve and curve[-1].place < ended:
        best.append((float(ended), curve[-1].best))  # the best value holds until now
    return chart(
        [Series("dots", dots), Series("step", best)], title="Best value so far", x_label="trials that have ended"
    )
