"""An experiment that was saved as one HTML file, opened in a browser that has no network."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.dashboard import PATIENCE_MILLISECONDS, accessibility_problems, browsing
from fakes.real_manager import real_manager

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
ELSEWHERE = "https://example.org/"
REPORTS = """
import proctor
lr = proctor.get_next_parameter()["lr"]
for step in range(5):
    proctor.report_intermediate_result(lr * step)
if proctor.get_sequence_id() == 3:
    raise ValueError("<script>alert(2)</script>")
proctor.report_final_result(lr * 5)
"""
SPACE = {
    "lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]},
    "</script><b>": {"_type": "choice", "_value": [HOSTILE, "other"]},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file; its manager has ended."""
    folder = tmp_path_factory.mktemp("saved")
    with real_manager(folder) as manager:
        made = manager.create(REPORTS, experimentName=HOSTILE, maxTrialNumber=6, searchSpace=SPACE, trialConcurrency=3)
        manager.until_status(made, "DONE")
        manager.command_line("experiment", "export", made, "--format", "html", "--filename", str(folder / "saved.html"))
    return folder / "saved.html"


@pytest.fixture
def page(saved: Path) -> Iterator[Any]:
    with browsing() as browser:
        context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE_MILLISECONDS)
        requests: list[str] = []
        errors: list[str] = []
        opened.on("request", lambda request: requests.append(request.url))
        opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(saved.as_uri())
        yield opened
        assert [text for text in errors if ELSEWHERE not in text] == []
        assert [url for url in requests if not url.startswith((saved.as_uri(), "data:", "blob:", ELSEWHERE))] == []
        context.close()


def test_a_saved_experiment_shows_overview_trials_and_curves(page: Any) -> None:
    page.get_by_role("heading", level=1).get_by_text(HOSTILE).wait_for()
    page.get_by_role("img", name="Best value so far").wait_for()
    page.get_by_role("region", name="Failures").get_by_text("1×").wait_for()
    assert accessibility_problems(page) == []
    page.get_by_role("navigation", name="Pages of the experiment").get_by_role("link", name="Trials").click()
    page.get_by_text("6 trials", exact=True).wait_for()
    page.get_by_role("columnheader", name="Trial").get_by_role("button").click()
    page.wait_for_function("document.querySelector('[role=rowheader]').innerText === '5'")
    assert page.get_by_role("rowheader").all_inner_texts() == ["5", "4", "3", "2", "1", "0"]
    page.get_by_role("button", name="failed: 1").click()
    page.get_by_text("1 of 6 trials").wait_for()
    assert accessibility_problems(page) == []
    page.get_by_role("rowheader").get_by_role("link").click()
    page.get_by_role("heading", name="Trial 3").wait_for()
    page.get_by_role("img", name="Intermediate values: 5 points").wait_for()
    assert accessibility_problems(page) == []
    page.go_back()
    page.get_by_text("1 of 6 trials").wait_for()  # the filter is in the address


def test_nothing_in_a_saved_experiment_changes_something_or_is_taken_for_html(page: Any, saved: Path) -> None:
    page.get_by_role("heading", level=1).get_by_text(HOSTILE).wait_for()
    page.get_by_text("saved ", exact=False).first.wait_for()
    for word in ("Stop", "Pause", "Resume", "Limits", "Delete"):
        assert page.get_by_role("button", name=word).count() == 0
    assert page.title().startswith("</script>")  # the name, as text
    text = saved.read_text()
    assert len(re.findall("</script", text)) == 2
    assert HOSTILE not in text
    assert page.evaluate("address => fetch(address).then(() => 'sent', () => 'refused')", ELSEWHERE) == "refused"
