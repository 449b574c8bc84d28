"""Hand-made requests that once failed inside the manager, or were taken though they make no sense."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx
import pytest
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

TRIAL = """\
import os, proctor
folder = os.path.join(os.environ["PROCTOR_JOB_DIR"], "output")
os.makedirs(folder, exist_ok=True)
open(os.path.join(os.fsencode(folder), b"caf\\xe9"), "w").close()
with open(os.path.join(os.environ["PROCTOR_JOB_DIR"], "journal"), "a") as journal:
    journal.write('{"kind":"intermediate","value":{"default":1,"caf\\\\udce9":"\\\\ud800"},"time":1.0}\\n')
    journal.write('{"kind":"intermediate","value":' + "[" * 300 + "]" * 300 + ',"time":1.0}\\n')
    journal.write('{"kind":"intermediate","value":' + "9" * 400 + ',"time":1.0}\\n')
    journal.write('{"kind":"intermediate","value":{"default":9223372036854775808},"time":1.0}\\n')
proctor.report_final_result({"default": 2**63, "caf\\udce9": "\\ud800"})
"""
LARGE = 2**63
BAD_IDS = ["9" * 5000, str(LARGE), "-1", "1e3", "\u0663"]


class Attacked:
    """A manager with an experiment that is DONE, and a client that sends what it likes."""

    def __init__(self, manager: RealManager) -> None:
        self.manager = manager
        self.experiment = manager.create(TRIAL, maxTrialNumber=1)
        manager.until_status(self.experiment, "DONE")
        self.trial = str(manager.trials(self.experiment)[0]["id"])
        headers = {"Authorization": f"Bearer {manager.client.token}"}
        self.client = httpx.Client(base_url=manager.client.url + "/api/v1/", headers=headers, timeout=60)

    def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        answer = self.client.request(method, path.format(e=self.experiment, t=self.trial), **content)
        assert answer.status_code < 500, answer.text
        return answer


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with real_manager(tmp_path_factory.mktemp("attacked")) as manager:
        made = Attacked(manager)
        with made.client:
            yield made


READS = [
    *("experiments", "experiments/{e}", "experiments/{e}/trials", "experiments/{e}/trials?sort=-value"),
    *("experiments/{e}/best", "experiments/{e}/curve", "experiments/{e}/export?intermediate=true", "trials/{t}"),
    *("trials/{t}/jobs", "trials/{t}/metrics", "trials/{t}/files"),
]


def test_strange_metrics_and_file_names_are_shown(attacked: Attacked) -> None:
    for path in READS:
        assert attacked.send("GET", path).status_code == 200, path


def test_strange_metrics_are_kept_cleaned_and_what_cannot_be_kept_is_counted(attacked: Attacked) -> None:
    rows = attacked.send("GET", "trials/{t}/metrics").json()["items"]
    assert [row["kind"] for row in rows] == ["intermediate", "unreadable", "unreadable", "intermediate", "final"]
    assert rows[0]["data"] == {"default": 1, "caf\\udce9": "\\ud800"}
    trial = attacked.send("GET", "trials/{t}").json()
    assert (trial["status"], trial["final_value"]) == ("SUCCEEDED", float(LARGE))
    paths = [file["path"] for file in attacked.send("GET", "trials/{t}/files").json()["items"]]
    assert "output/caf\\udce9" in paths


def test_an_id_that_was_not_made_here_is_refused(attacked: Attacked) -> None:
    paths = (
        "trials/{t}/metrics?cursor=",
        "trials/{t}/metrics?after=",
        "experiments/{e}/export?cursor=",
        "events?after=",
    )
    for path, value in product(paths, BAD_IDS):
        assert attacked.send("GET", path + value).status_code == 422, (path, value[:20])
    for value in BAD_IDS[:-1]:
        assert attacked.send("GET", "events", headers={"Last-Event-ID": value}).status_code == 422, value[:20]


def test_a_part_beyond_the_end_of_a_file_is_empty(attacked: Attacked) -> None:
    paths = ("logs/manager", "experiments/{e}/logs", "trials/{t}/logs", "trials/{t}/files/stdout")
    for path, offset in product(paths, (2**53, 2**53 - 1, 2**44, -(2**53))):
        answer = attacked.send("GET", f"{path}?offset={offset}")
        assert answer.status_code == 200, (path, offset)
        assert offset < 0 or answer.content == b"", (path, offset)


DEEP = "[" * 300 + "]" * 300
BOTTOMLESS = "[" * 5000 + "]" * 5000
LONG = "9" * 4000


def test_a_body_that_cannot_be_kept_is_refused(attacked: Attacked) -> None:
    for method, path, body in (
        ("POST", "experiments", f'{{"config": {BOTTOMLESS}, "directory": "/"}}'),
        ("POST", "experiments", f'{{"config": {{"searchSpace": {DEEP}}}, "directory": "/"}}'),
        ("POST", "experiments", '{"config": {"trialCommand": "caf\\udce9"}, "directory": "/"}'),
        ("POST", "experiments/{e}/trials", f'{{"parameters": {{"x": {DEEP}}}}}'),
        ("POST", "experiments/{e}/trials", f'{{"parameters": {{"x": {LONG}}}}}'),
        ("POST", "experiments/{e}/import", f'[{{"parameter": {{"x": 0.5}}, "value": {LONG}}}]'),
        ("POST", "experiments/{e}/import", BOTTOMLESS),
        ("PATCH", "experiments/{e}", f'{{"search_space": {{"x": {DEEP}}}}}'),
    ):
        answer = attacked.send(method, path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in {400, 409, 422}, (path, body[:50])
        assert answer.json()["detail"], (path, body[:50])


def test_a_wrong_method_names_all_that_are_allowed(attacked: Attacked) -> None:
    for method, path, allowed in (
        ("PUT", "experiments", "GET, POST"),
        ("PUT", "experiments/{e}", "DELETE, GET, PATCH"),
        ("POST", "experiments/{e}/best", "GET"),
        ("GET", "experiments/{e}/stop", "POST"),
        ("DELETE", "experiments/{e}/trials", "GET, POST"),
        ("GET", "trials/{t}/kill", "POST"),
    ):
        answer = attacked.send(method, path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
        assert allowed in answer.json()["detail"]
