"""The dashboard in a browser, of a real manager with real trials."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.dashboard import Visitor, accessibility_problems, buffering_proxy, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>" + " very-" * 20 + "long"
SPACE = {
    "lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]},
    "model": {
        "_type": "choice",
        "_value": [{"_name": "<b>cnn</b>\u202e", "width": {"_type": "choice", "_value": [16, 32]}}, {"_name": "mlp"}],
    },
}
REPORTS = """
import proctor
lr = proctor.get_next_parameter()["lr"]
for step in range(5):
    proctor.report_intermediate_result(lr * step)
if proctor.get_sequence_id() == 3:
    raise ValueError("<script>alert(2)</script>")
proctor.report_final_result(lr * 5)
"""
WAITS_FOR_FILE = """
import os, sys, time
import proctor
proctor.get_next_parameter()
proctor.report_intermediate_result(0.25)
print("\033[31mred\033[0m <b>first</b> line", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("second line", flush=True)
proctor.report_final_result(0.75)
"""
FOLLOWS_FILES = """
import os, sys, time
import proctor
proctor.get_next_parameter()
proctor.report_intermediate_result(0.25)
for number, value in ((1, 0.5), (2, 0.75)):
    while not os.path.exists(sys.argv[1] + str(number)):
        time.sleep(0.02)
    proctor.report_intermediate_result(value)
proctor.report_final_result(0.75)
"""
TWO_RANKS = """
import os, subprocess, sys
import proctor
if "RANK" not in os.environ:
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)]
    processes = [subprocess.Popen([sys.executable, __file__], env={**os.environ, **rank}) for rank in ranks]
    sys.exit(max(process.wait() for process in processes))
rank = int(os.environ["RANK"])
for number in range(2):
    proctor.report_intermediate_result(rank + number)
if rank == 0:
    with open(os.path.join(os.environ["PROCTOR_JOB_DIR"], "journal"), "a") as journal:
        journal.write("<i>no report</i>\\n")
proctor.report_final_result(rank + 0.5)
"""
LOST = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")
"""What a browser logs while there is no manager."""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with an experiment that is over and one that has failed."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        options: dict[str, Any] = {"searchSpace": SPACE, "trialConcurrency": 3}
        over = made.create(REPORTS, experiment_id="over", experimentName="digits", maxTrialNumber=8, **options)
        failed = made.create(
            "raise SystemExit(3)", experiment_id="failed", experimentName=HOSTILE, maxTrialNumber=4, **options
        )
        made.until_status(over, "DONE")
        made.until_status(failed, "ERROR", "DONE")
        yield made


def test_the_experiments_are_searched_and_the_search_is_in_the_address(visitor: Visitor) -> None:
    page = visitor.goto("/")
    rows = page.locator("tbody tr")
    rows.nth(1).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("digi")
    page.wait_for_url(re.compile(r"\?q=digi$"))
    rows.nth(1).wait_for(state="detached")
    assert rows.count() == 1
    copied = visitor.open(page.url.removeprefix(visitor.url))
    copied.locator("tbody tr").first.wait_for()
    assert copied.locator("tbody tr").count() == 1


def test_the_overview_shows_the_best_trial_and_what_failed(visitor: Visitor, manager: RealManager) -> None:
    best = manager.client.experiment("over")["best"]
    page = visitor.goto("/")
    page.get_by_role("link", name="digits").click()
    panel = page.get_by_role("region", name="Best trial", exact=True)
    panel.get_by_text(f"trial {best['sequence_id']}", exact=True).wait_for()
    parameters = panel.locator("tr").all_inner_texts()
    assert [text.split("\t")[0] for text in parameters][:2] == ["lr", "model"]
    page.get_by_role("img", name="Best value so far").wait_for()
    page.get_by_role("region", name="Failures").get_by_text("1×").wait_for()


def test_an_open_page_follows_a_trial_without_being_asked(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    made = manager.create(WAITS_FOR_FILE, end, maxTrialNumber=1, interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}")
    running = page.get_by_role("region", name="Running trials").locator("tbody tr")
    running.get_by_text("0.2500").wait_for()
    end.touch()
    page.locator(".figures").get_by_text("0.7500").wait_for()
    running.first.wait_for(state="detached")
    page.get_by_text("done", exact=True).first.wait_for()


@pytest.mark.thorough
def test_the_pages_say_that_the_manager_is_gone_and_continue_when_it_is_back(browser: Any, tmp_path: Path) -> None:
    with real_manager(tmp_path) as manager:
        steps = tmp_path / "step"
        made = manager.create(
            FOLLOWS_FILES, steps, maxTrialNumber=3, trialConcurrency=2, searchSpace=SPACE, interpreter=sys.executable
        )
        with visiting(browser, manager) as visitor:
            visitor.expected_errors = LOST
            page = visitor.goto(f"/experiments/{made}/trials?sort=no&columns=no,status,value,latest,reports")
            curves = visitor.open(f"/experiments/{made}/curves")
            table = page.get_by_role("table", name="Trials")
            table.get_by_text("0.2500").nth(1).wait_for()
            curves.get_by_role("img", name="2 curves of 2 points").wait_for()
            port = int(visitor.url.rsplit(":", 1)[1])
            manager.kill()
            for each in (page, curves):
                each.get_by_text("not current").wait_for()
            assert page.get_by_role("rowheader").all_inner_texts() == ["0", "1"]  # what was read stays
            (tmp_path / "step1").touch()  # trials keep running without the manager
            manager.start(port)
            table.get_by_text("0.5000").nth(1).wait_for()
            curves.get_by_role("img", name="2 curves of 4 points").wait_for()
            for each in (page, curves):
                each.get_by_text("live", exact=True).wait_for()
            (tmp_path / "step2").touch()
            table.get_by_text("succeeded").nth(2).wait_for()
            curves.get_by_role("img", name="3 curves of 9 points").wait_for()
            assert page.get_by_role("rowheader").all_inner_texts() == ["0", "1", "2"]
            shown = sorted(curves.get_by_role("rowheader").all_inner_texts())
            assert [text.strip() for text in shown] == ["0", "1", "2"]
            manager.create(REPORTS, experiment_id="second", maxTrialNumber=1, searchSpace=SPACE)
            page.get_by_role("link", name="Experiments").click()
            page.locator("tbody tr").nth(1).wait_for()
            assert page.locator("tbody tr").count() == 2


@pytest.mark.thorough
def test_all_tabs_of_a_browser_share_one_stream(visitor: Visitor) -> None:
    visitor.page.get_by_text("live", exact=True).wait_for()
    streams: list[str] = []
    visitor.context.on(
        "request", lambda request: streams.append(request.url) if "/api/v1/events" in request.url else None
    )
    tabs = [visitor.open("/") for _ in range(7)]  # a browser has six connections for a host
    for tab in tabs:
        tab.get_by_text("live", exact=True).wait_for()
        tab.get_by_text("digits").wait_for()
    assert streams == []  # the first tab has it
    visitor.page.close()
    with visitor.context.expect_event("request", lambda request: "/api/v1/events" in request.url):
        tabs.pop().close()
    assert len(streams) == 1


def test_the_keys_are_listed_and_lead_from_row_to_row(visitor: Visitor) -> None:
    page = visitor.goto("/")
    page.locator("tbody tr").nth(1).wait_for()
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Best trial", exact=True).wait_for()
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.get_by_role("heading", name="Experiments").wait_for()


def test_a_trial_is_followed_from_its_first_line_to_its_value(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    made = manager.create(WAITS_FOR_FILE, end, maxTrialNumber=1, interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}")
    page.get_by_role("region", name="Running trials").get_by_role("link", name="0").click()
    log = page.get_by_role("region", name="stdout")
    log.get_by_text("<b>first</b> line").wait_for()
    assert log.locator(".fg1").inner_text() == "red"
    assert accessibility_problems(page) == []
    page.get_by_role("img", name="Intermediate values").wait_for()
    end.touch()
    log.get_by_text("second line").wait_for()
    page.locator(".figures").get_by_text("0.7500").wait_for()
    page.get_by_role("searchbox", name="Search in stdout").fill("SECOND")
    page.get_by_text("1 of 1 line").wait_for()
    assert log.locator("mark").all_inner_texts() == ["second"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.path().read_text() == "\033[31mred\033[0m <b>first</b> line\nsecond line\n"


def test_a_failed_trial_shows_its_traceback_at_once(visitor: Visitor, manager: RealManager) -> None:
    (failed,) = manager.client.trials("over", status=["FAILED"])
    page = visitor.goto("/experiments/over")
    page.get_by_role("region", name="Failures").get_by_role("link").click()
    page.wait_for_url(f"**/trials/{failed['id']}")
    page.get_by_role("region", name="stderr").get_by_text("ValueError: <script>alert(2)</script>").last.wait_for()
    page.get_by_text("files", exact=True).click()
    page.get_by_role("button", name="parameter.json").wait_for()


@pytest.mark.thorough
def test_a_distributed_trial_shows_its_ranks_and_what_was_not_a_report(visitor: Visitor, manager: RealManager) -> None:
    made = manager.create(TWO_RANKS, maxTrialNumber=1, interpreter=sys.executable)
    manager.until_status(made, "DONE")
    (trial,) = manager.trials(made)
    page = visitor.goto(f"/trials/{trial['id']}")
    page.get_by_text("Attempt 1: a line of its journal is not a valid report: <i>no report</i>").wait_for()
    rows = page.get_by_role("region", name="Table of ranks").locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:4] for row in rows] == [["0", "2", "1", "0.5000"], ["1", "2", "2", "1.500"]]
    assert accessibility_problems(page) == []


def test_a_trial_is_killed_after_a_question(visitor: Visitor, manager: RealManager, tmp_path: Path) -> None:
    made = manager.create(WAITS_FOR_FILE, tmp_path / "never", maxTrialNumber=1, interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}")
    page.get_by_role("region", name="Running trials").get_by_role("link", name="0").click()
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    page.get_by_text("user canceled").first.wait_for()
    (trial,) = manager.trials(made)
    assert trial["status"] == "USER_CANCELED"


def test_an_experiment_is_paused_resumed_and_stopped(visitor: Visitor, manager: RealManager, tmp_path: Path) -> None:
    made = manager.create(WAITS_FOR_FILE, tmp_path / "never", interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.get_by_text("stopped", exact=True).first.wait_for()
    assert manager.client.experiment(made)["status"] == "STOPPED"


def test_a_node_is_drained_and_resumed(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/nodes")
    node = page.get_by_role("region", name="Node local")
    node.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("<b>new disk</b>")
    page.keyboard.press("Enter")
    node.get_by_text("<b>new disk</b>").wait_for()
    assert "<b>new disk</b>" in manager.client.node("local")["hold"]
    node.get_by_role("button", name="Resume").click()
    node.get_by_role("button", name="Drain").wait_for()
    assert not manager.client.node("local")["hold"]


def test_trials_are_filtered_and_ordered_and_the_address_shows_the_same(visitor: Visitor, manager: RealManager) -> None:
    page = visitor.goto("/experiments/over/trials")
    rows = page.get_by_role("table", name="Trials").get_by_role("row")
    page.get_by_text("8 trials", exact=True).wait_for()
    values = [trial["final_value"] for trial in manager.trials("over") if trial["final_value"] is not None]
    best = max(range(len(values)), key=values.__getitem__)
    best_number = next(t["sequence_id"] for t in manager.trials("over") if t["final_value"] == values[best])
    assert rows.nth(1).get_by_role("rowheader").inner_text() == str(best_number)  # the best one is first
    page.get_by_role("searchbox", name="Filter").fill("status = SUCCEEDED and no > 3")
    page.get_by_text("4 of 8 trials").wait_for()
    page.get_by_role("columnheader", name="Trial").get_by_role("button").click()
    page.wait_for_url("**sort=-no*")
    page.wait_for_function("document.querySelector('[role=rowheader]').innerText === '7'")
    copied = visitor.open(page.url.removeprefix(visitor.url))
    copied.get_by_text("4 of 8 trials").wait_for()
    numbers = copied.get_by_role("rowheader").all_inner_texts()
    assert numbers == ["7", "6", "5", "4"]
    copied.get_by_role("link", name="7", exact=True).click()
    copied.get_by_role("heading", name="Trial 7").wait_for()


@pytest.mark.thorough
def test_a_wrong_filter_names_the_place_and_keeps_the_rows(visitor: Visitor) -> None:
    visitor.expected_errors = ("422",)
    page = visitor.goto("/experiments/over/trials")
    page.get_by_text("8 trials", exact=True).wait_for()
    page.get_by_role("searchbox", name="Filter").fill("lr < 1 and nothing = 2")
    problem = page.locator("#filter-problem")
    problem.wait_for()
    assert problem.locator("mark").inner_text().startswith("nothing")
    assert page.get_by_role("rowheader").count() == 8
    assert accessibility_problems(page) == []


def test_columns_are_chosen_and_the_table_is_saved_as_csv(visitor: Visitor) -> None:
    page = visitor.goto("/experiments/over/trials?filter=no%20%3C%202&sort=no")
    page.get_by_text("2 of 8 trials").wait_for()
    page.get_by_text("columns", exact=True).click()
    page.get_by_role("checkbox", name="source").check()
    page.get_by_role("columnheader", name="source").wait_for()
    assert "columns=" in page.url
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    head, *lines = download.value.path().read_text().splitlines()
    assert head.split(",")[0] == "no"
    assert head.endswith(",source")
    assert [line.split(",")[0] for line in lines] == ["0", "1"]
    assert all(line.endswith(",algorithm") for line in lines)


@pytest.mark.thorough
def test_behind_a_buffering_proxy_and_a_prefix_it_stays_current(
    browser: Any, manager: RealManager, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    made = manager.create(WAITS_FOR_FILE, end, maxTrialNumber=1, interpreter=sys.executable)
    with buffering_proxy(manager.client.url, "/tools/proctor") as url, visiting(browser, manager, url=url) as visitor:
        visitor.expected_errors = ("504",)  # the stream, which the proxy gives up
        page = visitor.goto(f"/experiments/{made}/trials")
        page.get_by_role("table", name="Trials").get_by_text("running").wait_for()
        assert page.get_by_text("live", exact=True).count() == 0
        end.touch()
        page.get_by_role("table", name="Trials").get_by_text("0.7500").wait_for()
        page.get_by_role("rowheader").get_by_role("link").click()
        page.wait_for_url(f"{url}/trials/*")
        page.get_by_role("region", name="stdout").get_by_text("second line").wait_for()


@pytest.mark.thorough
def test_the_concurrency_is_edited_and_a_refused_value_says_why(
    visitor: Visitor, manager: RealManager, tmp_path: Path
) -> None:
    visitor.expected_errors = ("422",)
    made = manager.create(WAITS_FOR_FILE, tmp_path / "never", interpreter=sys.executable)
    page = visitor.goto(f"/experiments/{made}")
    page.get_by_role("button", name="Limits").click()
    dialog = page.get_by_role("dialog", name="Limits")
    assert accessibility_problems(page) == []
    dialog.get_by_label("Concurrent trials").fill("-1")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Concurrent trials").fill("2")
    dialog.get_by_label("Duration at most").fill("2h 30m")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    page.get_by_role("region", name="Running trials").get_by_role("link", name="1").wait_for()  # the second trial
    changed = manager.client.experiment(made)
    assert (changed["trial_concurrency"], changed["max_experiment_duration_seconds"]) == (2, 9000)
    manager.client.stop_experiment(made)
