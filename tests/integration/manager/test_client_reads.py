"""What client and command line read of a real manager: tables as files, charts, logs, events, nodes."""

import csv
import io
import json
from collections.abc import Iterator

import pytest
from fakes.real_manager import RealManager, real_manager
from pyarrow import parquet

from proctor.sdk.client.errors import BadInput

pytestmark = pytest.mark.slow

TRIAL = """
import sys, proctor
number = proctor.get_sequence_id()
for step in range(4):
    proctor.report_intermediate_result({"default": step * (number + 1), "loss": 1.0})
    print(f"trial {number} Step {step}")
print("CUDA Error" if number == 1 else "fine", file=sys.stderr)
proctor.report_final_result(number)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    """With an experiment `reads` of three trials that has ended."""
    with real_manager(tmp_path_factory.mktemp("reads")) as made:
        made.create(TRIAL, experiment_id="reads", maxTrialNumber=3)
        made.until_status("reads", "DONE")
        yield made


def test_a_table_is_saved_as_a_file_by_both(manager: RealManager) -> None:
    client = manager.client
    wanted = {"filter": "value > 0", "sort": ["-value"], "columns": ["no", "value", "status"]}
    text = client.table_file("reads", "csv", **wanted).decode()
    assert list(csv.reader(io.StringIO(text))) == [
        ["no", "value", "status"],
        ["2", "2.0", "SUCCEEDED"],
        ["1", "1.0", "SUCCEEDED"],
    ]
    found = parquet.read_table(io.BytesIO(client.table_file("reads", "parquet", **wanted))).to_pydict()
    assert found == {"no": [2, 1], "value": [2, 1], "status": ["SUCCEEDED"] * 2}
    assert json.loads(client.table_file("reads", "json", **wanted))["matched"] == 2
    path = manager.code / "results.parquet"
    manager.command_line("experiment", "export", "reads", "-t", "parquet", "--filename", path)
    exported = parquet.read_table(path).to_pydict()
    assert sorted(exported["no"]) == [0, 1, 2]
    assert set(exported) >= {"no", "value", "status", "parameter.x", "time"}
    refused = manager.attempt("experiment", "export", "reads", "-t", "parquet", "-i")
    assert refused.returncode == 2
    assert "use --type csv" in refused.stderr


def test_a_density_counts_each_curve_in_each_column(manager: RealManager) -> None:
    assert manager.client.curve_keys("reads") == ["loss"]
    found = manager.client.density("reads", width=4, height=3)
    assert (found["curves"], found["width"], found["height"]) == (3, 4, 3)
    assert all(sum(row[column] for row in found["counts"]) >= 3 for column in range(4))
    assert manager.client.density("reads", key="loss", x="seconds", width=1, height=1)["counts"] == [[3]]


def test_logs_are_searched_page_after_page(manager: RealManager) -> None:
    client = manager.client
    found, cursor = [], None
    while True:
        answer = client.search_logs("step", experiment_id="reads", ignore_case=True, limit=5, cursor=cursor)
        found += [(line["sequence_id"], line["line"], line["text"]) for line in answer["items"]]
        if (cursor := answer["next_cursor"]) is None:
            break
    assert found == [(no, step + 1, f"trial {no} Step {step}") for no in (2, 1, 0) for step in range(4)]
    trial = manager.trials("reads")[1]["id"]
    assert [line["stream"] for line in client.search_logs("CUDA", trial_id=trial)["items"]] == ["stderr"]
    [line] = json.loads(manager.command_line("log", "search", "CUDA", "reads", "-o", "json"))
    assert (line["sequence_id"], line["text"]) == (1, "CUDA Error")
    listed = manager.attempt("log", "search", "Step", "reads", "--trial", "2", "--limit", "3")
    assert listed.stdout.count("trial 2 Step") == 3
    assert "these are the first 3 lines; --limit 6 prints more" in listed.stderr
    nothing = manager.attempt("log", "search", "nonesuch", "reads")
    assert (nothing.returncode, "no line has this text" in nothing.stdout + nothing.stderr) == (0, True)
    assert manager.attempt("log", "search", "two\nlines", "reads").returncode == 2


def test_past_events_come_newest_first_with_who_caused_them(manager: RealManager) -> None:
    client = manager.client
    every = list(client.past_events("reads", page_size=2))
    assert every == list(client.past_events("reads"))
    ended = list(client.past_events("reads", kinds=["trial.status"], text="succeeded"))
    assert {event["sequence_id"] for event in ended} == {0, 1, 2}
    assert every[-1]["actor"] == {"name": "owner", "via": "sdk"}
    shown = json.loads(
        manager.command_line(
            "experiment", "events", "reads", "--kind", "trial.status", "--text", "SUCCEEDED", "-n", "2", "-o", "json"
        )
    )
    assert shown == ended[:2]
    table = manager.command_line("experiment", "events", "reads", "-n", "1000")
    assert "owner (sdk)" in table
    nothing = manager.attempt("experiment", "events", "reads", "--kind", "nonesuch")
    assert "no such event" in nothing.stdout + nothing.stderr


def test_the_occupancy_of_a_node_has_its_jobs(manager: RealManager) -> None:
    found = manager.client.occupancy("local", limit=2)
    assert [(job["sequence_id"], job["end_reason"]) for job in found["jobs"]] == [(1, "EXITED_OK"), (2, "EXITED_OK")]
    assert found["complete_since"] is not None
    assert manager.client.occupancy("local", until="2001-01-01T00:00:00Z")["jobs"] == []
    with pytest.raises(BadInput, match="since"):
        manager.client.occupancy("local", since="2001-01-02T00:00:00Z", until="2001-01-01T00:00:00Z")
    shown = json.loads(manager.command_line("nodes", "show", "local", "--hours", "2", "-o", "json"))
    assert [job["sequence_id"] for job in shown["jobs"]] == [0, 1, 2]
    table = manager.command_line("nodes", "show", "local")
    assert table.count("EXITED_OK") == 3
    assert "LOAD" in table


def test_views_are_saved_listed_and_deleted_by_both(manager: RealManager) -> None:
    client = manager.client
    saved = client.save_view("reads", "best / 1", page="trials", query="filter=value+%3E+0.9")
    assert (saved["saved_by"], client.views("reads")) == ("owner", [saved])
    made = json.loads(
        manager.command_line(
            "experiment", "view", "save", "reads", "loss", "--page", "curves", "--query", "key=loss", "-o", "json"
        )
    )
    assert client.views("reads") == json.loads(manager.command_line("experiment", "view", "ls", "reads", "-o", "json"))
    assert client.views("reads") == [saved, made]
    assert "filter=value+%3E+0.9" in manager.command_line("experiment", "view", "list", "reads")
    refused = manager.attempt("experiment", "view", "save", "reads", "x", "--query", "a b")
    assert (refused.returncode, "query" in refused.stderr) == (2, True)
    assert "use -y" in manager.attempt("experiment", "view", "delete", "reads", "loss").stderr
    manager.command_line("experiment", "view", "delete", "reads", "loss", "-y")
    client.delete_view("reads", "best / 1")
    assert "has no saved views" in manager.attempt("experiment", "view", "list", "reads").stderr
    missing = manager.attempt("experiment", "view", "delete", "reads", "loss", "-y")
    assert missing.returncode == 3
