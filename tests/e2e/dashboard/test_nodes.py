"""Nodes over time, search in the output of trials, and events, in a browser."""

import re
from collections.abc import Iterator

import pytest
from fakes.dashboard import Visitor
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>" + " very-" * 20 + "long"
SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
PRINTS = """
import proctor
proctor.get_next_parameter()
number = proctor.get_sequence_id()
for line in range(30_000 if number == 0 else 3):
    print(f"line {line} of many, so that the file is long")
    if line == 40:
        print("\\033[31mNeedle\\033[0m <b>here</b>" + " long" * 300)
print("<script>alert(3)</script> last")
if number == 3:
    raise ValueError("needle in stderr")
proctor.report_final_result(number)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment that is over."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        over = made.create(
            PRINTS,
            experiment_id="over",
            experimentName=HOSTILE,
            searchSpace=SPACE,
            trialConcurrency=2,
            maxTrialNumber=5,
        )
        made.until_status(over, "DONE")
        yield made


def test_a_node_shows_which_trials_it_ran_and_leads_to_them(visitor: Visitor) -> None:
    page = visitor.goto("/nodes")
    bars = page.locator(".lane-bars a")
    bars.first.wait_for()
    assert bars.count() == 5
    # By keyboard: bars of trials that ran one right after the other may cover each other in part.
    page.get_by_label(re.compile("^Trial 3 of over: .*exited error")).press("Enter")
    page.get_by_role("heading", name="Trial 3").wait_for()


@pytest.mark.thorough
def test_a_found_line_leads_to_its_place_in_the_output(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/search")
    page.get_by_label("Text to search for").fill("needle")
    page.get_by_label("either case").check()
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("lines in").wait_for()
    assert "q=needle" in page.url
    assert "case=ignore" in page.url
    row = page.get_by_role("row", name=re.compile("Needle"))
    row.get_by_role("link", name="0").click()
    page.get_by_role("heading", name="Trial 0").wait_for()
    page.get_by_text("Needle").wait_for()  # at the beginning of a file whose end is shown otherwise
    page.get_by_role("button", name="To the end").click()
    page.get_by_text("<script>alert(3)</script> last").wait_for()


def test_the_viewer_passes_a_search_on_to_the_manager(visitor: Visitor, manager: RealManager) -> None:
    trials = {trial["sequence_id"]: trial["id"] for trial in manager.client.trials("over")}
    page = visitor.goto(f"/trials/{trials[0]}")
    page.get_by_label("Search in stdout").fill("needle")
    page.get_by_text("not found").wait_for()
    page.get_by_role("link", name="Search all output").click()
    page.get_by_text("1 line in").wait_for()


def test_events_are_filtered_in_the_address_and_lead_to_trials(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/events")
    page.get_by_label("Kind").select_option("trial.status")
    page.get_by_label("Search in events").fill("failed")
    page.get_by_text("1 event", exact=True).wait_for()
    assert "kind=trial.status" in page.url
    assert "text=failed" in page.url
    page.get_by_label("Kind").select_option("job.status")
    page.get_by_label("Search in events").fill("")
    page.get_by_role("link", name="on local").first.click()
    page.wait_for_url("**/nodes#local")
    page.go_back()
    page.get_by_label("Kind").select_option("trial.status")
    page.get_by_label("Search in events").fill("failed")
    page.get_by_role("link", name="trial 3").click()
    page.get_by_role("heading", name="Trial 3").wait_for()
