"""Saved views in a browser, of a real manager."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.dashboard import Screen, problems_on, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

LONG = "<img src=x onerror=alert(1)> " + "very-" * 10
TRIAL = """
import proctor
proctor.report_final_result(proctor.get_next_parameter()["x"])
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment that is over."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        made.create(TRIAL, experiment_id="over", maxTrialNumber=3)
        made.until_status("over", "DONE")
        yield made


def names(manager: RealManager) -> list[str]:
    return [view["name"] for view in manager.client.views("over")]


def test_a_view_is_saved_chosen_replaced_and_deleted_with_the_keyboard(browser: Any, manager: RealManager) -> None:
    with visiting(browser, manager) as visitor:
        page = visitor.goto("/experiments/over/trials?filter=no+%3C+2&sort=-no")
        page.get_by_text("2 of 3 trials").wait_for()
        menu = page.locator("summary", has_text="views")
        menu.focus()
        page.keyboard.press("Enter")
        field = page.get_by_label("Name of the view")
        field.focus()
        page.keyboard.type("the first / two")
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name="the first / two")
        link.wait_for()
        assert link.get_attribute("aria-current") == "page"
        (saved,) = manager.client.views("over")
        assert (saved["page"], saved["query"]) == ("trials", "filter=no+%3C+2&sort=-no")

        page.keyboard.press("Escape")
        link.wait_for(state="detached")
        page.get_by_role("link", name="Overview").click()
        page.get_by_text("Best trial").first.wait_for()
        menu.click()
        link.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"/experiments/over/trials\?filter=no\+%3C\+2&sort=-no$"))
        page.get_by_text("2 of 3 trials").wait_for()
        assert page.get_by_label("Filter").input_value() == "no < 2"

        page.goto(f"{visitor.url}/experiments/over/trials?filter=no+%3D+1")
        page.get_by_text("1 of 3 trials").wait_for()
        menu.click()
        page.get_by_role("button", name="Replace").click()
        page.get_by_role("dialog").get_by_role("button", name="Replace").click()
        page.locator(".views a[aria-current]").wait_for()
        assert manager.client.views("over")[0]["query"] == "filter=no+%3D+1"
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("No views are saved yet.").wait_for()
        assert names(manager) == []


def test_the_menu_is_accessible_fits_its_screen_and_shows_names_as_text(
    browser: Any, manager: RealManager, screen: Screen
) -> None:
    manager.client.save_view("over", LONG, page="relations", query="filter=no+%3C+2")
    manager.client.save_view("over", "best", page="trials", query="sort=-value")
    with visiting(browser, manager, **screen.options) as visitor:
        page = visitor.goto("/experiments/over/trials?sort=-value")
        page.get_by_text("3 trials").first.wait_for()
        page.locator("summary", has_text="views").click()
        page.get_by_role("link", name=LONG.strip()).wait_for()
        assert problems_on(page, screen) == []
        box = page.locator(".views > div").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= screen.width
    manager.client.delete_view("over", LONG)
    manager.client.delete_view("over", "best")
