"""The dashboard's table of trials in a browser: selected, acted upon, compared, copied, saved, followed."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.dashboard import Screen, Visitor, accessibility_problems, problems_on, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

SPACE = {
    "lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]},
    "model": {
        "_type": "choice",
        "_value": [{"_name": "cnn", "width": {"_type": "choice", "_value": [16, 32]}}, {"_name": "mlp"}],
    },
}
REPORTS = """
import proctor
lr = proctor.get_next_parameter()["lr"]
for step in range(5):
    proctor.report_intermediate_result(lr * step)
proctor.report_final_result(lr * 5)
"""
WAITS_FOR_FILE = """
import os, sys, time
import proctor
proctor.get_next_parameter()
proctor.report_intermediate_result(0.25)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
proctor.report_intermediate_result(0.5)
proctor.report_final_result(0.75)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment that is over."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        over = made.create(REPORTS, experiment_id="over", maxTrialNumber=8, searchSpace=SPACE, trialConcurrency=3)
        made.until_status(over, "DONE")
        yield made


def box(page: Any, number: int) -> Any:
    return page.get_by_role("checkbox", name=f"Trial {number}", exact=True)


@pytest.mark.thorough
def test_selection_and_dialogs_are_accessible_and_fit(browser: Any, manager: RealManager, screen: Screen) -> None:
    with visiting(browser, manager, **screen.options) as visitor:
        page = visitor.goto("/experiments/over/trials?sort=no")
        box(page, 0).check()
        box(page, 2).check()
        page.get_by_text("2 trials selected").wait_for()
        assert problems_on(page, screen) == []
        page.get_by_role("button", name="Retry 2", exact=True).click()
        page.get_by_role("dialog").wait_for()
        assert accessibility_problems(page) == []


def test_rows_are_selected_with_the_mouse_and_the_keys(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/trials?sort=no")
    box(page, 1).click()
    box(page, 4).click(modifiers=["Shift"])
    page.get_by_text("4 trials selected").wait_for()
    page.keyboard.press("a")
    page.keyboard.press("x")
    page.get_by_text("trials selected").wait_for(state="detached")
    page.get_by_role("link", name="2", exact=True).focus()
    page.keyboard.press("x")
    page.get_by_text("1 trial selected").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Shift+X")
    page.get_by_text("3 trials selected").wait_for()
    page.keyboard.press("a")
    page.keyboard.press("a")
    page.get_by_text("8 trials selected").wait_for()


@pytest.mark.thorough
def test_a_column_that_costs_more_is_read_when_it_is_chosen(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/experiments/over/trials?sort=no&columns=no,value")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("curve.best").check()
    page.get_by_role("columnheader", name="curve.best").get_by_role("button").click()
    page.wait_for_url("**sort=-curve.best**")
    table = manager.client.table("over", columns=["no", "curve.best"], sort=["-curve.best"])
    first = page.get_by_role("table", name="Trials").get_by_role("row").nth(1)
    first.get_by_role("rowheader", name=str(table["rows"][0][0]), exact=True).wait_for()
    page.get_by_role("searchbox", name="Filter").fill("no < 2")
    page.get_by_role("searchbox", name="Filter").press("Enter")
    page.wait_for_url("**filter=no**", timeout=200)


def test_selected_trials_are_killed_after_a_question_and_the_table_follows(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    made = manager.create(WAITS_FOR_FILE, end, maxTrialNumber=3, trialConcurrency=3, interpreter=sys.executable)
    whole_tables: list[str] = []
    page = visitor.goto(f"/experiments/{made}/trials?sort=no&columns=no,status,latest,value")
    rows = page.get_by_role("table", name="Trials").get_by_role("row")
    page.get_by_role("cell", name="0.2500").nth(2).wait_for()
    page.on("request", lambda request: whole_tables.append(request.url) if "/table?" in request.url else None)
    box(page, 0).check()
    box(page, 2).check()
    page.keyboard.press("a")
    page.keyboard.press("k")
    dialog = page.get_by_role("dialog", name="Kill 2 trials?")
    dialog.get_by_text("Trials 0 and 2").wait_for()
    dialog.get_by_role("button", name="Kill").click()
    page.get_by_text("Kill: done for 2 trials").wait_for()
    rows.nth(1).get_by_text("user canceled").wait_for()
    rows.nth(3).get_by_text("user canceled").wait_for()
    end.touch()
    rows.nth(2).get_by_text("0.7500").wait_for()
    assert [trial["status"] for trial in manager.trials(made)] == ["USER_CANCELED", "SUCCEEDED", "USER_CANCELED"]
    assert whole_tables == []  # only what has changed was read


def test_what_failed_for_one_trial_is_said_beside_what_was_done(visitor: Visitor, manager: RealManager) -> None:
    visitor.expected_errors = ("409",)
    first = manager.trials("over")[0]["id"]
    problem = {"title": "Conflict", "status": 409, "detail": "it has no checkpoint"}
    page = visitor.goto("/experiments/over/trials?sort=no")
    page.route(
        f"**/trials/{first}/retry?from_checkpoint=false",
        lambda route: route.fulfill(status=409, content_type="application/problem+json", body=json.dumps(problem)),
    )
    box(page, 0).check()
    page.get_by_role("button", name="Retry 1", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True).click()
    page.get_by_text("Trial 0: it has no checkpoint").wait_for()
    page.get_by_text("Retry: done for 0 trials, not for 1").wait_for()


def test_trials_are_compared_and_one_is_left_out(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/trials?sort=no")
    for number in (1, 3, 4):
        box(page, number).check()
    assert page.get_by_role("link", name="curves", exact=True).get_attribute("href").endswith("curves?trials=1,3,4")
    page.get_by_role("link", name="compare").click()
    table = page.get_by_role("region", name="Compared trials")
    table.get_by_role("link", name="trial 4").wait_for()
    names = [text.split("\t")[0].strip() for text in table.locator("tbody tr").all_inner_texts()]
    assert names[:2] == ["status", "≠ lr"]
    page.get_by_role("button", name="Leave out trial 3").click()
    page.wait_for_url(re.compile(r"trials=1(,|%2C)4$"))
    page.get_by_role("img", name="Curves of trials 1, 4").wait_for()


def test_parameters_are_copied_from_the_selection(visitor: Visitor, manager: RealManager) -> None:
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visitor.goto("/experiments/over/trials?sort=no")
    box(page, 0).check()
    box(page, 1).check()
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_text("JSON copied").wait_for()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied == [trial["parameters"] for trial in manager.trials("over")[:2]]


@pytest.mark.thorough
def test_a_trial_is_added_from_the_form_and_problems_stand_at_their_keys(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    visitor.expected_errors = ("422",)
    made = manager.create(
        WAITS_FOR_FILE, tmp_path / "never", maxTrialNumber=9, searchSpace=SPACE, interpreter=sys.executable
    )
    page = visitor.goto(f"/experiments/{made}/trials")
    box(page, 0).check()
    page.get_by_role("button", name="Add a trial like it").click()
    form = page.get_by_role("dialog", name="Add a trial")
    form.get_by_label("lr").fill("7")
    form.get_by_role("button", name="Add").click()
    form.get_by_role("alert").get_by_text("lr", exact=False).first.wait_for()
    form.get_by_label("lr").fill("0.01")
    form.get_by_label("model", exact=False).first.select_option("mlp")
    form.get_by_role("button", name="Add").click()
    page.get_by_role("heading", level=1, name="Trial").wait_for()
    added = next(trial for trial in manager.trials(made) if trial["source"] == "customized")
    assert added["parameters"] == {"lr": 0.01, "model": {"_name": "mlp"}}
    manager.client.stop_experiment(made)


@pytest.mark.thorough
def test_the_search_space_is_edited_as_yaml(visitor: Visitor, manager: RealManager, tmp_path: Path) -> None:
    visitor.expected_errors = ("422",)
    made = manager.create(
        WAITS_FOR_FILE, tmp_path / "never", maxTrialNumber=9, searchSpace=SPACE, interpreter=sys.executable
    )
    page = visitor.goto(f"/experiments/{made}")
    page.get_by_role("button", name="Search space").click()
    dialog = page.get_by_role("dialog", name="Search space")
    text = dialog.get_by_role("textbox", name="Search space")
    text.fill("lr:\n  _type: unifrom\n  _value: [0, 1]\n")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").get_by_text("lr", exact=False).first.wait_for()
    assert accessibility_problems(page) == []
    text.fill("lr: {_type: uniform, _value: [0, 1]}\n")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    assert manager.client.experiment(made)["search_space"] == {"lr": {"_type": "uniform", "_value": [0, 1]}}
    manager.client.stop_experiment(made)


def test_a_read_only_token_may_select_but_not_change(browser: Any, manager: RealManager) -> None:
    with visiting(browser, manager, token="readonly.token") as visitor:
        page = visitor.goto("/experiments/over/trials?sort=no")
        box(page, 0).check()
        page.get_by_text("1 trial selected").wait_for()
        assert page.get_by_role("button", name="Retry").count() == 0
        assert page.get_by_role("button", name="Clone").count() == 0
