"""The page of curves in a browser, of a real manager with real trials."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fakes.dashboard import Visitor
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

LONG = "x" * 120 + "<b>bold</b>"
SPACE = {"lr": {"_type": "uniform", "_value": [0.1, 1]}, LONG: {"_type": "choice", "_value": [LONG, "short"]}}
REPORTS = """
import proctor
lr = proctor.get_next_parameter()["lr"]
for step in range(1, 11):
    proctor.report_intermediate_result({"default": lr * step, "loss": 1 / step})
proctor.report_final_result(lr * 10)
"""
FOLLOWS_A_FILE = """
import os, sys, time
import proctor
proctor.get_next_parameter()
proctor.report_intermediate_result(0.25)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
proctor.report_intermediate_result(0.75)
while not os.path.exists(sys.argv[1] + "2"):
    time.sleep(0.02)
proctor.report_final_result(0.75)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        over = made.create(REPORTS, experiment_id="over", maxTrialNumber=8, searchSpace=SPACE, trialConcurrency=3)
        made.until_status(over, "DONE")
        yield made


def _best(manager: RealManager) -> list[int]:
    return [row["sequence_id"] for row in sorted(manager.trials("over"), key=lambda row: -row["final_value"])]


@pytest.mark.thorough
def test_what_is_shown_is_in_the_address(visitor: Visitor, manager: RealManager) -> None:
    best = _best(manager)
    page = visitor.goto("/experiments/over/curves")
    page.get_by_label("best").select_option("5")
    page.get_by_label("trials", exact=True).fill(f"{best[-1]}, 99")
    page.get_by_label("metric").select_option("loss")
    page.get_by_role("combobox", name=re.compile("^over")).select_option("seconds")
    page.get_by_label("log y").check()
    page.get_by_label("density of all").uncheck()
    page.get_by_text("6 trials shown; there is no trial 99").wait_for()
    page.wait_for_url(re.compile("all=no"))
    copied = visitor.open(page.url.removeprefix(visitor.url))
    copied.get_by_role("img", name="6 curves").wait_for()
    numbers = copied.get_by_role("rowheader").all_inner_texts()
    assert [int(text) for text in numbers] == [*best[:5], best[-1]]
    assert copied.get_by_label("metric").input_value() == "loss"
    assert copied.get_by_label("log y").is_checked()
    copied.get_by_role("checkbox", name=f"Keep trial {best[-1]} selected").click()  # its row goes
    copied.get_by_text("5 trials shown").wait_for()


def test_a_curve_and_its_row_are_highlighted_together_and_a_click_opens_the_trial(
    visitor: Visitor, manager: RealManager
) -> None:
    best, *_ = _best(manager)
    page = visitor.goto("/experiments/over/curves?top=5&all=no")
    page.get_by_role("img", name="5 curves").wait_for()
    note = page.locator(".plot-note")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=str(best), exact=True))
    row.hover()
    note.get_by_text(re.compile(f"^trial {best}, succeeded · step 9: ")).wait_for()
    area = page.locator(".u-over")
    box = area.bounding_box()
    assert box is not None
    y = 0.06 / 1.12 * box["height"]  # the greatest value: the range has 6 % of room at both ends
    area.hover(position={"x": box["width"] - 2, "y": y})
    page.locator("tr.lit").get_by_role("link", name=str(best), exact=True).wait_for()
    area.click(position={"x": box["width"] - 2, "y": y})
    page.get_by_role("heading", name=f"Trial {best}").wait_for()


@pytest.mark.thorough
def test_a_part_is_enlarged_by_dragging_and_the_address_keeps_it(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/curves")
    page.get_by_role("img", name="8 curves").wait_for()
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 200, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("view="))
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="Show all").wait_for(state="detached")
    assert "view=" not in page.url


@pytest.mark.thorough
def test_a_part_is_enlarged_and_moved_and_axes_are_logarithmic_by_keys(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/curves")
    page.get_by_role("img", name="8 curves").wait_for()

    def after(key: str) -> list[float]:
        before = page.url
        page.keyboard.press(key)
        page.wait_for_function("before => location.href !== before", arg=before)
        (view,) = parse_qs(urlsplit(page.url).query)["view"]
        return [float(end) for end in view.split(",")]

    left, right, low, high = after("+")
    width = right - left
    assert after("Shift+ArrowRight") == pytest.approx([left + width / 4, right + width / 4, low, high])
    assert after("-") == pytest.approx(
        [left - width / 4, right + 3 * width / 4, *(low * 1.5 - high / 2, high * 1.5 - low / 2)]
    )
    page.keyboard.press("0")
    page.get_by_role("button", name="Show all").wait_for(state="detached")
    for axis in "xy":
        page.keyboard.press("l")
        page.keyboard.press(axis)
        page.get_by_role("checkbox", name=f"log {axis}", checked=True).wait_for()


@pytest.mark.thorough
@pytest.mark.parametrize("low", [0.096, 0.1, 1.2])
def test_a_logarithmic_axis_may_begin_anywhere(visitor: Visitor, low: float) -> None:
    page = visitor.goto(f"/experiments/over/curves?log=xy&view={low},9,{low},9")
    page.get_by_role("img", name="8 curves").wait_for()
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="Show all").wait_for(state="detached")


def test_new_points_of_a_running_trial_arrive_without_reading_its_curve_again(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    go_on = tmp_path / "more"
    made = manager.create(FOLLOWS_A_FILE, go_on, maxTrialNumber=1, interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}/curves")
    row = page.get_by_role("table").locator("tbody tr")
    row.get_by_text("0.2500").wait_for()
    page.get_by_role("img", name="1 curve").wait_for()
    read: list[str] = []
    page.on("request", lambda request: read.append(request.url) if "/curves?" in request.url else None)
    go_on.touch()
    row.get_by_text("0.7500").wait_for()
    row.hover()
    page.locator(".plot-note").get_by_text("0.7500").wait_for()
    assert read == []
    (tmp_path / "more2").touch()
    row.get_by_text("succeeded").wait_for()
