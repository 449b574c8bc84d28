"""The client: how it finds its manager, follows pages and fails."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.served_manager import TOKEN, ServedManager

from proctor.manager.settings import Home
from proctor.sdk.client import Client
from proctor.sdk.client import errors as client_errors
from proctor.sdk.client.connections import Connections, HttpAnswer
from proctor.sdk.client.home import find_home
from proctor.sdk.client.transport import PAGE_SIZE
from proctor.training_services.stored_checkpoints import DELETE_SECONDS, TIME_LIMIT_SECONDS


def test_it_finds_the_manager_of_its_home(served: ServedManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_HOME", str(served.home))
    with Client() as client:
        assert (client.url, client.token) == (served.url, TOKEN)
        assert client.version()["home"] == str(served.home)
        assert client.session()["access"] == "full"


def test_url_and_token_come_from_the_environment(
    served: ServedManager, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PROCTOR_URL", served.url + "/")
    monkeypatch.setenv("PROCTOR_TOKEN", TOKEN)
    with Client(home=tmp_path / "elsewhere") as client:
        assert client.version()["api"] == "v1"


def test_both_sides_agree_on_the_home(served: ServedManager, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("/somewhere/else", "~/mine", "relative"):
        monkeypatch.setenv("PROCTOR_HOME", value)
        assert find_home() == Home.find().path
    monkeypatch.delenv("PROCTOR_HOME")
    assert find_home() == Home.find().path
    home = Home.find(served.home)
    assert {home.manager_file.name, home.token_file.name} == {"manager.json", "token"}
    assert home.incoming_directory == served.home / "incoming"


def test_a_home_without_a_manager_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(client_errors.ManagerUnreachable, match="proctor manager start"):
        Client(home=tmp_path)


def test_a_damaged_address_is_no_manager(tmp_path: Path) -> None:
    (tmp_path / "manager.json").write_text('{"url": ')
    with pytest.raises(client_errors.ManagerUnreachable):
        Client(home=tmp_path)


def test_the_manager_has_time_to_use_a_storage_of_checkpoints(
    served: ServedManager, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[float] = []
    send = Connections.send

    def note(self: Connections, *place: str, seconds: float, **rest: Any) -> HttpAnswer:
        given.append(seconds)
        return send(self, *place, seconds=seconds, **rest)

    monkeypatch.setattr(Connections, "send", note)
    requests = (
        lambda: client.create_experiment({}, directory=tmp_path),
        lambda: client.load_experiment("a.zip"),
        lambda: client.delete_experiment("e"),
    )
    for request in requests:
        with pytest.raises(client_errors.ClientError):
            request()
    assert len(given) == len(requests)
    assert min(given) > max(DELETE_SECONDS, 2 * TIME_LIMIT_SECONDS), "it looks whether it may, and does it"


def test_lists_follow_all_pages(served: ServedManager, client: Client) -> None:
    served.add_experiment(trials=[{}] * (PAGE_SIZE + 1))
    assert [row["sequence_id"] for row in client.trials("e")] == list(range(PAGE_SIZE + 1))
    assert len(served.requests("GET")) == 2


def test_pages_are_asked_for_only_when_they_are_read(served: ServedManager, client: Client) -> None:
    served.add_experiment(trials=[{}] * (PAGE_SIZE + 1))
    next(client.trials("e"))
    assert len(served.requests("GET")) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, client_errors.BadInput),
        (401, client_errors.Unauthorized),
        (403, client_errors.Refused),
        (404, client_errors.NotFound),
        (409, client_errors.Conflict),
        (422, client_errors.BadInput),
        (503, client_errors.ManagerFault),
        (418, client_errors.ManagerFault),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[Exception]) -> None:
    error = client_errors.problem_error(status, {"detail": "A sentence."}, "GET /x")
    assert type(error) is kind
    assert (str(error), error.status_code) == ("A sentence.", status)
    assert isinstance(error, client_errors.ClientError)


def test_an_answer_that_is_no_problem_document_is_quoted() -> None:
    error = client_errors.problem_error(502, "<h1>Bad gateway</h1>", "GET /nodes")
    assert str(error) == "GET /nodes was answered with status 502: <h1>Bad gateway</h1>"


def test_every_problem_is_one_line() -> None:
    document = {
        "detail": "wrong",
        "problems": [{"file": "e.yml", "line": 3, "column": 1, "key": "seed", "message": "expected a number"}, "also"],
    }
    assert client_errors.problem_error(422, document, "").problems == ("e.yml:3:1: seed: expected a number", "also")


def test_what_json_cannot_hold_is_refused_before_it_is_sent(served: ServedManager, client: Client) -> None:
    with pytest.raises(client_errors.BadInput):
        client.add_trial("e", {"lr": float("nan")})
    assert not served.asked


def test_ids_cannot_break_out_of_their_path(served: ServedManager, client: Client) -> None:
    with pytest.raises(client_errors.NotFound):
        client.experiment("a/../../shutdown?x=1")
    assert served.asked == [("GET", "/experiments/a%2F..%2F..%2Fshutdown%3Fx%3D1", None)]


def test_importing_the_package_costs_no_http_library() -> None:
    code = "import sys, proctor.sdk.client; print([m for m in ('httpx', 'rich', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
