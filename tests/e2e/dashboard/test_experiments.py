"""The list of experiments and their comparison in a browser, of a real manager with real trials."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.dashboard import Screen, Visitor, accessibility_problems, parameters_of, problems_on, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>" + " very-" * 20 + "long"
LR = {"_type": "loguniform", "_value": [1e-4, 1e-1]}
MODEL = {"_type": "choice", "_value": ["cnn", "mlp"]}
TRIAL = """
import proctor
proctor.report_final_result(proctor.get_next_parameter()["lr"] * 5)
"""
WAITS = """
import time
import proctor
proctor.get_next_parameter()
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with three experiments that are over, one of them with a hostile name and many tags."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        for name, title, space, trials in (
            ("first", "digits", {"lr": LR, "model": MODEL}, 4),
            ("second", "letters", {"lr": {**LR, "_value": [1e-3, 1e-1]}, "model": MODEL, HOSTILE: LR}, 6),
            ("hostile", HOSTILE, {"lr": LR, "model": MODEL}, 2),
        ):
            made.create(TRIAL, experiment_id=name, experimentName=title, maxTrialNumber=trials, searchSpace=space)
            made.until_status(name, "DONE")
        made.client.update_experiment("first", {"tags": ["baseline", "paper"]})
        made.client.update_experiment("hostile", {"tags": [f"<b>tag {number}</b>" for number in range(20)]})
        yield made


def row(page: Any, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name))


def opened_menu(page: Any, name: str) -> Any:
    """The dialog for tags, archive and deletion."""
    row(page, name).get_by_role("button", name="Tags, archive, delete").click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


@pytest.mark.thorough
def test_a_long_name_keeps_to_its_line_and_the_menu_is_accessible(
    browser: Any, manager: RealManager, screen: Screen
) -> None:
    with visiting(browser, manager, **screen.options) as visitor:
        page = visitor.goto("/?selected=first,second")
        row(page, "onerror").wait_for()
        assert problems_on(page, screen) == []
        heights = {line.bounding_box()["height"] for line in page.locator("tbody tr").all()}
        assert max(heights) < 32  # one line each
        if screen.width == 1440:
            assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))") <= 0
        dialog = opened_menu(page, "onerror")
        assert accessibility_problems(page) == []
        dialog.get_by_role("button", name="Delete").click()
        assert accessibility_problems(page) == []


@pytest.mark.thorough
def test_experiments_are_filtered_by_a_tag_that_is_clicked(visitor: Visitor) -> None:
    page = visitor.goto("/")
    row(page, "digits").get_by_role("button", name="paper").click()
    row(page, "letters").wait_for(state="detached")
    assert parameters_of(page)["tags"] == ["paper"]
    copied = visitor.open(page.url.removeprefix(visitor.url))
    row(copied, "digits").wait_for()
    assert copied.locator("tbody tr").count() == 1
    copied.locator(".bar").get_by_role("button", name="paper").click()
    row(copied, "letters").wait_for()
    page.goto(f"{visitor.url}/?q=baseline")
    row(page, "digits").wait_for()
    assert page.locator("tbody tr").count() == 1


def test_tags_are_edited_and_a_refused_one_says_why(visitor: Visitor, manager: RealManager) -> None:
    visitor.expected_errors = ("422",)
    page = visitor.goto("/")
    dialog = opened_menu(page, "letters")
    dialog.get_by_label("Tags").fill("x" * 60)
    dialog.get_by_role("button", name="Save tags").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Tags").fill("new, , two words,new")
    page.keyboard.press("Enter")
    row(page, "letters").get_by_role("button", name="two words").wait_for()
    assert manager.client.experiment("second")["tags"] == ["new", "two words"]


def test_an_experiment_is_archived_and_brought_back(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/")
    opened_menu(page, "letters").get_by_role("button", name="Archive", exact=True).click()
    row(page, "letters").wait_for(state="detached")
    assert manager.client.experiment("second")["archived"]
    page.get_by_role("button", name="archived", exact=True).click()
    row(page, "letters").wait_for()
    assert parameters_of(page)["archived"] == ["true"]
    assert page.locator("tbody tr").count() == 1
    opened_menu(page, "letters").get_by_role("button", name="Bring back").click()
    page.get_by_text("No experiment matches.").wait_for()
    assert not manager.client.experiment("second")["archived"]


def test_an_experiment_is_deleted_after_a_question_that_names_what_is_lost(
    visitor: Visitor, manager: RealManager
) -> None:
    made = manager.create(TRIAL, experimentName="doomed", maxTrialNumber=2, searchSpace={"lr": LR})
    manager.until_status(made, "DONE")
    folder = Path(manager.client.experiment(made)["directory"])
    page = visitor.goto("/")
    dialog = opened_menu(page, "doomed")
    dialog.get_by_role("button", name="Delete").click()
    assert "2 trials" in dialog.inner_text()
    assert str(folder) in dialog.inner_text()
    assert "checkpoints" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    row(page, "doomed").wait_for(state="detached")
    assert not folder.exists()
    assert made not in {each["id"] for each in manager.client.experiments()}


def test_an_experiment_is_paused_and_stopped_from_its_row(visitor: Visitor, manager: RealManager) -> None:
    made = manager.create(WAITS, experimentName="waiting")
    page = visitor.goto("/")
    line = row(page, "waiting")
    line.get_by_role("button", name="Pause").click()
    line.get_by_text("paused", exact=True).wait_for()
    dialog = opened_menu(page, "waiting")
    assert dialog.get_by_role("button", name="Delete").count() == 0
    page.keyboard.press("Escape")
    line.get_by_role("button", name="Resume").click()
    line.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    line.get_by_text("stopped", exact=True).wait_for()
    assert manager.client.experiment(made)["status"] == "STOPPED"
    manager.client.delete_experiment(made)


@pytest.mark.thorough
def test_selected_experiments_are_compared(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/")
    page.get_by_role("link", name="digits").focus()
    page.keyboard.press("x")
    page.get_by_text("1 selected").wait_for()
    assert page.get_by_role("link", name="Compare").count() == 0
    page.get_by_role("checkbox", name="Select letters").check()
    assert parameters_of(page)["selected"] == ["first,second"]
    page.get_by_role("link", name="Compare").click()
    page.wait_for_url(re.compile(r"/compare\?experiments=first,second$"))
    best = page.get_by_role("region", name="Best so far", exact=True)
    best.get_by_role("img", name="digits, letters").wait_for()
    best.get_by_role("button", name="over time").click()
    page.wait_for_url(re.compile("along=time"))
    best.get_by_role("img", name="digits, letters").wait_for()
    assert "maximize value" in row(page, "digits").inner_text()
    link = row(page, "letters").get_by_role("link").nth(1).get_attribute("href")
    assert link is not None
    assert link.endswith(manager.client.experiment("second")["best"]["trial_id"])
    spaces = page.get_by_role("table").last
    assert [text.split("\t") for text in spaces.locator("tbody tr").all_inner_texts()] == [
        ["lr", "loguniform(0.0001, 0.1)", "loguniform(0.001, 0.1)"],
        [HOSTILE, "not searched", "loguniform(0.0001, 0.1)"],
    ]
    page.get_by_text("1 parameter is the same").wait_for()
    page.reload()
    page.get_by_role("button", name="Leave out letters").click()
    page.get_by_text("There is only one.").wait_for()
    assert parameters_of(page) == {"experiments": ["first"], "along": ["time"]}


def test_what_cannot_be_compared_is_named(visitor: Visitor) -> None:
    visitor.expected_errors = ("404",)
    page = visitor.goto("/compare?experiments=first,nothing")
    page.get_by_role("alert").get_by_text("nothing: ").wait_for()
    page.get_by_role("region", name="Best so far", exact=True).get_by_role("img").wait_for()
    page = visitor.goto("/compare")
    page.get_by_text("None is chosen.").wait_for()
