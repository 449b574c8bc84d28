"""The chart of the best values is drawn only when it must be."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.connections import open_writer
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import experiments, trials
from proctor.manager.web import best_charts
from proctor.manager.web.best_charts import BestCharts

EXPERIMENT = ExperimentRow(
    id="e",
    name="e",
    status=ExperimentStatus.RUNNING,
    config={},
    search_space={},
    directory="/e",
    seed=1,
    created_at=1.0,
    trial_concurrency=1,
)


class Scene:
    """One experiment, a clock, and a reading of its trials that takes some seconds."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.now = 0.0
        self.reads = 0
        self.charts = BestCharts(lambda: self.now)
        experiments.insert(connection, EXPERIMENT)

    def end(self, value: float | None, status: TrialStatus = TrialStatus.SUCCEEDED) -> None:
        number = sum(trials.counts(self.connection, "e").values())
        row = TrialRow(f"t{number}", "e", number, status, number, {}, 1.0, final_value=value, ended_at=number)
        trials.insert(self.connection, row)

    def read(self, connection: sqlite3.Connection, experiment_id: str, maximize: bool) -> list[trials.CurvePoint]:
        self.reads += 1
        self.now += 2.0
        return trials.best_curve(connection, experiment_id, maximize)

    def draw(self, experiment: ExperimentRow = EXPERIMENT) -> str:
        counts = trials.counts(self.connection, experiment.id)
        return self.charts.draw(self.connection, experiment, counts=counts, maximize=True)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    connection = open_writer(str(tmp_path / "control.db"), "control")
    made = Scene(connection)
    monkeypatch.setattr(best_charts, "trials", _Trials(made))
    yield made
    connection.close()


class _Trials:
    """The store's module with a slow `best_curve`."""

    RANKED = trials.RANKED

    def __init__(self, scene: Scene) -> None:
        self.best_curve = scene.read


def test_a_chart_is_not_drawn_again_without_a_new_end(scene: Scene) -> None:
    assert scene.draw() == ""
    scene.now = 1000.0
    scene.end(0.5)
    first = scene.draw()
    assert first.count("<circle") == 2
    scene.now += 1000.0
    assert scene.draw() == first
    assert scene.reads == 2


def test_drawing_takes_a_twentieth_of_the_time_at_most(scene: Scene) -> None:
    scene.end(0.5)
    first = scene.draw()
    scene.end(0.7)
    scene.now += 39.0
    assert scene.draw() == first
    scene.now += 2.0
    assert scene.draw() != first
    assert scene.reads == 2


def test_the_last_chart_of_an_experiment_is_drawn_at_once(scene: Scene) -> None:
    scene.end(0.5)
    first = scene.draw()
    scene.end(0.7)
    over = replace(EXPERIMENT, ended_at=9.0)
    assert scene.draw(over) != first
    assert scene.draw(over) == scene.draw(over)
    assert scene.reads == 2


def test_trials_without_a_result_have_their_place_on_the_axis(scene: Scene) -> None:
    scene.end(0.5)
    for _ in range(4):
        scene.end(None, TrialStatus.EARLY_STOPPED)
    scene.end(0.7)
    scene.now = 1000.0
    drawn = ElementTree.fromstring(scene.draw())
    first, last = (float(dot.attrib["cx"]) for dot in drawn.iter("circle"))
    assert _tick(drawn, 1) == pytest.approx(first, abs=0.2)
    assert _tick(drawn, 6) == pytest.approx(last, abs=0.2)
    for status in (TrialStatus.EARLY_STOPPED, TrialStatus.FAILED):
        scene.end(None, status)
        scene.now += 1000.0
    drawn = ElementTree.fromstring(scene.draw())
    assert max(float(dot.attrib["cx"]) for dot in drawn.iter("circle")) == pytest.approx(_tick(drawn, 6), abs=0.2)
    [line] = (path.attrib["d"] for path in drawn.iter("path"))
    assert float(line.rpartition("H")[2].partition("V")[0]) == pytest.approx(_tick(drawn, 8), abs=0.2)


def _tick(drawn: ElementTree.Element, number: int) -> float:
    """Where the axis has a number."""
    return next(float(text.attrib["x"]) for text in drawn.iter("text") if text.text == str(number))


def test_only_the_newest_charts_are_kept(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_charts, "MOST_KEPT", 2)
    for identifier in ("a", "b", "c", "c", "a"):
        scene.draw(replace(EXPERIMENT, id=identifier))
    assert scene.reads == 4
