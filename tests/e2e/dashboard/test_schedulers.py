"""The pages of an experiment whose trial scheduler clones trials: its population, and who continues from whom."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.dashboard import Screen, Visitor, problems_on, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

REPORTS = "import proctor; proctor.report_final_result(1)"
TRAINING = """
import pathlib, sys, tempfile, time
import proctor
x = proctor.get_next_parameter()["x"]
checkpoint = proctor.get_checkpoint()
step = 0 if checkpoint is None else int(pathlib.Path(checkpoint, "step").read_text())
while step < 12:
    step += 1
    time.sleep(0.2)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "step").write_text(str(step))
        proctor.report(x * step, step=step, checkpoint=folder)
    if proctor.should_stop():
        sys.exit()
while proctor.get_sequence_id() == 0:
    time.sleep(0.2)
    if proctor.should_stop():
        sys.exit()
proctor.report_final_result(x * step)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment of a population, of which one trial still runs, and one without a scheduler."""
    arguments = {"perturbation_interval": 2, "time_attr": "training_iteration", "population_size": 4}
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        options: dict[str, Any] = {"searchSpace": {"x": {"_type": "uniform", "_value": [0.1, 1]}}, "seed": 7}
        made.create(
            TRAINING,
            experiment_id="population",
            trialScheduler={"name": "PBT", "classArgs": arguments},
            trialConcurrency=4,
            maxTrialNumber=4,
            **options,
        )
        made.create(REPORTS, experiment_id="plain", maxTrialNumber=1, **options)
        made.until(lambda: clones(made), "a trial that continues from another")
        yield made


def clones(manager: RealManager) -> list[dict[str, Any]]:
    """The trials that have continued from another one."""
    rows = [manager.client.trial(row["id"]) for row in manager.client.trials("population")]
    return [row for row in rows if any(each["kind"] == "clone" and each["job"] for each in row["decisions"])]


@pytest.mark.thorough
def test_the_overview_has_the_population_with_links_to_its_trials(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/experiments/population")
    panel = page.get_by_role("region", name="Trial scheduler")
    panel.get_by_text("Population (4 of 4 added)").wait_for()
    assert panel.get_by_role("columnheader").all_inner_texts() == [
        *("Trial", "Value", "Trained to", "Generation", "Clone of", "State"),
    ]  # fmt: skip
    link = panel.get_by_role("cell").get_by_role("link").first
    number = link.inner_text()
    link.click()
    page.get_by_role("heading", name=re.compile(rf"^Trial {number}\b")).wait_for()
    page = visitor.goto("/experiments/plain")
    page.get_by_role("heading", name="Best trial").wait_for()
    assert page.get_by_text("Trial scheduler").count() == 0


def test_a_clone_says_from_whom_it_continues_and_why(visitor: Visitor, manager: RealManager) -> None:
    clone = clones(manager)[0]
    decision = next(each for each in clone["decisions"] if each["kind"] == "clone")
    page = visitor.goto(f"/trials/{clone['id']}")
    attempts = page.get_by_role("region", name="Attempts")
    attempts.get_by_text(f"Continues from trial {decision['donor_sequence_id']}: the donor is at").first.wait_for()
    attempts.get_by_role("link", name=f"trial {decision['donor_sequence_id']}").first.click()
    page.get_by_role("heading", name=re.compile(rf"^Trial {decision['donor_sequence_id']}\b")).wait_for()


@pytest.mark.thorough
def test_both_pages_fit_every_screen(browser: Any, manager: RealManager, screen: Screen) -> None:
    with visiting(browser, manager, **screen.options) as visitor:
        for path in ("/experiments/population", f"/trials/{clones(manager)[0]['id']}"):
            page = visitor.goto(path)
            page.get_by_text(re.compile("^Population|^Continues from")).first.wait_for()
            assert problems_on(page, screen) == []
