"""Every page of the dashboard where it is hardest: below a prefix, without the stream of changes, for one who may only
look, with names that are HTML."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fakes.dashboard import Screen, buffering_proxy, problems_on, visiting
from fakes.real_manager import RealManager, real_manager

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

HOSTILE = "<img src=x onerror=alert(1)>" + " very-" * 20 + "long"
SPACE = {
    "lr": {"_type": "loguniform", "_value": [1e-4, 1e-1]},
    HOSTILE: {"_type": "choice", "_value": [HOSTILE, "\u202eshort"]},
    "model": {
        "_type": "choice",
        "_value": [{"_name": "<b>cnn</b>", "width": {"_type": "choice", "_value": [16, 32]}}, {"_name": "mlp"}],
    },
}
REPORTS = """
import proctor
lr = proctor.get_next_parameter()["lr"]
print("<script>alert(2)</script> \\033[31mneedle\\033[0m")
for step in range(5):
    proctor.report_intermediate_result({"default": lr * step, "<i>loss</i>": 1 / (step + 1)})
if proctor.get_sequence_id() == 3:
    raise ValueError("<script>alert(3)</script>" + " word" * 40)
proctor.report_final_result(lr * 5)
"""
CHANGES = (
    "Pause",
    "Resume",
    "Stop",
    "Limits",
    "Search space",
    "Kill",
    "Retry",
    "Clone",
    "Add",
    "Drain",
    "Check",
    "Save",
    "Replace",
    "Delete",
    "…",
)
"""How the names of buttons begin that change something."""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """A manager with two experiments that are over and one that runs."""
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        options: dict[str, Any] = {"searchSpace": SPACE, "trialConcurrency": 3, "experimentName": HOSTILE}
        for name, number in (("over", 12), ("second", 2)):
            made.create(REPORTS, experiment_id=name, maxTrialNumber=number, **options)
        for name in ("over", "second"):
            made.until_status(name, "DONE")
            made.client.update_experiment(name, {"tags": ["<b>tag</b>"]})
        made.client.save_view("over", "a view", page="trials", query="sort=-value")
        made.create("import time; time.sleep(600)", experiment_id="runs", **options)
        made.until(lambda: list(made.client.trials("runs", status=["RUNNING"])), "a trial that runs")
        yield made


PAGES = {
    "experiments": ("/", "<b>tag</b>"),
    "selected experiments": ("/?selected=over,second", "2 selected"),
    "comparison of experiments": ("/compare?experiments=over,second", "They do not differ"),
    "overview": ("/experiments/over", "ValueError: <script>alert(3)</script>"),
    "overview of what runs": ("/experiments/runs", "3 trials"),
    "trials": ("/experiments/over/trials", "12 trials"),
    "comparison of trials": ("/experiments/over/compare?trials=0,1,3", "Side by side"),
    "curves": (f"/experiments/over/curves?key={quote('<i>loss</i>')}", "over the density of 12"),
    "relations": ("/experiments/over/relations", "PED-ANOVA"),
    "relations of too few trials": ("/experiments/second/relations", "Too few trials: 2 trials"),
    "trial": ("/trials/{failed}", "<script>alert(2)</script> needle"),
    "trial that runs": ("/trials/{running}", "Attempts"),
    "events": ("/experiments/over/events", "SUCCEEDED"),
    "dispatcher's log": ("/experiments/over/log", "Log of the dispatcher"),
    "search": ("/experiments/over/search?q=needle", "12 lines in"),
    "nodes": ("/nodes", "last report"),
    "manager's log": ("/log", "experiment over is RUNNING"),
    "unknown experiment": ("/experiments/nothing", "Not found"),
    "unknown trial": ("/trials/nothing", "Not found"),
}


def test_every_page_is_shown_below_a_prefix_without_a_stream_to_one_who_may_only_look(
    browser: Any, manager: RealManager, screen: Screen
) -> None:
    (failed,) = manager.client.trials("over", status=["FAILED"])
    running, *_ = manager.client.trials("runs", status=["RUNNING"])
    sent: list[str] = []
    with (
        buffering_proxy(manager.client.url, "/tools/proctor") as url,
        visiting(browser, manager, token="readonly.token", url=url, **screen.options) as visitor,
    ):
        visitor.expected_errors = ("404", "504")  # what is unknown, and the stream, which the proxy gives up
        visitor.context.on(
            "request",
            lambda request: None if request.method == "GET" else sent.append(f"{request.method} {request.url}"),
        )
        for name, (path, text) in PAGES.items():
            page = visitor.goto(path.format(failed=f"{failed['id']}?stream=stdout", running=running["id"]))
            page.get_by_text(text).first.wait_for()
            page.evaluate("document.querySelectorAll('main details').forEach(each => { each.open = true; })")
            assert page.locator("main img[src], main script, main iframe").count() == 0, name
            assert problems_on(page, screen) == [], name
            buttons = page.get_by_role("button").all_inner_texts()
            assert [text for text in buttons if text.startswith(CHANGES)] == [], name
            assert page.locator(".views input").count() == 0, name
    assert sent == []
