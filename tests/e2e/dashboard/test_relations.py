"""The page of parameters and values in a browser, of a real manager with real trials."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.dashboard import Visitor, parameters_of
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>" + " very-" * 20 + "long"
SPACE = {
    "lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]},
    HOSTILE: {"_type": "uniform", "_value": [0, 1]},
    "model": {
        "_type": "choice",
        "_value": [{"_name": "<b>cnn</b>", "width": {"_type": "uniform", "_value": [16, 32]}}, {"_name": "mlp"}],
    },
}
TRIAL = """
import proctor
proctor.report_final_result(proctor.get_next_parameter()["lr"] * 5)
"""
MANY = 16


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment of enough trials."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        # The same points each time: of some draws another trial is nearer to the corner of the plot than the best one.
        made.create(TRIAL, experiment_id="many", maxTrialNumber=MANY, searchSpace=SPACE, trialConcurrency=3, seed=7)
        made.until_status("many", "DONE")
        yield made


def opened(visitor: Visitor) -> Any:
    """The page, once everything is drawn."""
    page = visitor.goto("/experiments/many/relations")
    page.locator("canvas[data-drawn]").nth(1).wait_for()
    return page


def axes(page: Any) -> list[str]:
    return [text.rstrip(" ↑↓") for text in page.get_by_role("list", name="Axes").locator("button").all_inner_texts()]


def test_a_range_dragged_on_an_axis_is_a_filter_that_the_table_is_opened_with(
    visitor: Visitor, manager: RealManager
) -> None:
    page = opened(visitor)
    canvas = page.get_by_role("img", name="A line for each of 16 trials")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 44, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 44, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("ranges="))
    (ranges,) = parameters_of(page)["ranges"]
    assert re.fullmatch(r"parameter\.lr >= [\d.]+", ranges)
    matched = manager.client.table("many", filter=ranges)["matched"]
    assert 0 < matched < MANY
    page.get_by_text(f"{matched} of 16 trials").wait_for()
    copied = visitor.open(page.url.removeprefix(visitor.url))
    copied.get_by_text(f"{matched} of 16 trials").wait_for()
    page.get_by_role("link", name="as a table").click()
    page.get_by_text(f"{matched} of 16 trials").wait_for()
    assert page.get_by_label("Filter").input_value() == ranges


@pytest.mark.thorough
def test_axes_are_moved_and_flipped_and_ranges_chosen_by_the_keyboard(visitor: Visitor) -> None:
    page = opened(visitor)
    first, second, *others = axes(page)
    head = page.get_by_role("list", name="Axes").locator("button").first
    head.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile("axes="))
    assert axes(page) == [second, first, *others]
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("axes=.*-parameter"))
    page.get_by_text("Ranges as fields").click()
    page.get_by_label("lr from").fill("0.001")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("ranges="))
    page.get_by_label("mlp").click()
    page.wait_for_url(re.compile("parameter.model"))
    assert parameters_of(page)["ranges"] == ['parameter.lr >= 0.001 and parameter.model in ("<b>cnn</b>")']
    page.reload()
    page.locator("canvas[data-drawn]").nth(1).wait_for()
    assert axes(page)[:2] == [second, first]
    page.get_by_role("button", name="remove ranges").click()
    page.get_by_text("16 trials", exact=True).wait_for()


@pytest.mark.thorough
def test_importance_puts_a_parameter_first_and_a_point_opens_its_trial(visitor: Visitor, manager: RealManager) -> None:
    page = opened(visitor)
    bars = page.get_by_role("region", name="Importance", exact=True)
    bars.get_by_text("of 16 trials").wait_for()
    known = manager.client.importance("many")["parameters"]
    assert [text.split("\t")[0] for text in bars.locator("tbody tr").all_inner_texts()] == [
        each["name"] for each in known
    ]
    page.get_by_role("combobox", name="best", exact=True).select_option("0.5")
    bars.get_by_text("among the best 50 % (8 trials)").wait_for()
    assert parameters_of(page)["best"] == ["0.5"]
    page.get_by_role("combobox", name="best", exact=True).select_option("0.1")
    bars.get_by_text("among the best 10 %").wait_for()
    bars.get_by_role("button", name="model.width").click()
    page.wait_for_url(re.compile("x=parameter.model.width"))
    assert axes(page)[0] == "model.width"
    page.get_by_label("Horizontal").select_option("parameter.lr")
    page.wait_for_url(re.compile("x=parameter.lr"))
    page.locator("canvas[data-drawn]").nth(1).wait_for()
    best = manager.client.experiment("many")["best"]
    plot = page.get_by_role("img", name="value against lr")
    note = page.get_by_text(f"trial {best['sequence_id']}: value")

    def points_at_the_best() -> dict[str, float] | None:
        corner = {"x": plot.bounding_box()["width"] - 15, "y": 11}  # the greatest value is that of the greatest lr
        page.mouse.move(0, 0)  # a pointer that stays where it is tells the page nothing
        plot.hover(position=corner)
        return corner if note.is_visible() else None

    plot.click(position=manager.poll_for(points_at_the_best, "the note of the best trial"))
    page.wait_for_url(re.compile(f"/trials/{best['trial_id']}$"))
