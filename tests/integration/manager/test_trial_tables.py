"""A home of many trials, read through a real manager: client, `Experiment` and command line say the same."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from chaos.processes import tagged
from fakes.real_manager import real_manager

from proctor.manager.app import prepare
from proctor.manager.sample import SampleSize, fill
from proctor.manager.settings import Home
from proctor.sdk.client.errors import BadInput
from proctor.sdk.client.experiment import Experiment

pytestmark = pytest.mark.slow


def test_client_experiment_and_command_line_filter_alike(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    experiment_id = asyncio.run(fill(home, SampleSize(trials=300, points=3, parameters=10)))
    with real_manager(tmp_path, home=home.path) as manager:
        client = manager.client
        text = "status = SUCCEEDED and lr < 1e-2 and model = cnn"
        every = list(client.trials(experiment_id))
        expected = [
            trial["id"]
            for trial in sorted(every, key=lambda trial: trial["parameters"]["momentum"], reverse=True)
            if trial["status"] == "SUCCEEDED"
            and trial["parameters"]["lr"] < 1e-2
            and trial["parameters"]["model"]["_name"] == "cnn"
        ]
        assert 10 < len(expected) < 200
        found = client.table(experiment_id, filter=text, sort=["-momentum", "no"], columns=["id", "lr"], limit=5)
        assert [row[0] for row in found["rows"]] == expected[:5]
        assert (found["total"], found["matched"]) == (300, len(expected))
        listed = client.trials(experiment_id, filter=text, sort="-momentum", page_size=7)
        assert [trial["id"] for trial in listed] == expected
        experiment = Experiment(id=experiment_id, home=home.path)
        rows = experiment.table(text, sort=["-momentum"])
        experiment.client.close()
        assert [row["id"] for row in rows] == expected
        assert rows[0]["parameter.model"] == "cnn"
        [first, second] = [trial for trial in every if trial["status"] == "SUCCEEDED"][:2]
        drawn = client.curves(experiment_id, [second["sequence_id"], first["id"]])
        assert list(drawn) == [second["sequence_id"], first["sequence_id"]]
        stored = [(point["sequence"], point["value"]) for point in client.trial_curve(first["id"])]
        assert drawn[first["sequence_id"]] == [(step, pytest.approx(value)) for step, value in stored]
        news = client.changes(experiment_id, after=0, columns=["no", "value"])
        assert (len(news["rows"]["rows"]), news["revision"]) == (300, found["revision"])
        assert client.changes(experiment_id, after=news["revision"])["rows"] is None
        with pytest.raises(BadInput, match=r"filter: expected a column, found 'lrr'; did you mean lr\? \(position 0\)"):
            client.table(experiment_id, filter="lrr < 1")
        printed = manager.command_line("trial", "ls", "--filter", text, "--sort", "-momentum", "-o", "json")
        assert [trial["id"] for trial in json.loads(printed)] == expected


def test_tables_and_charts_are_read_in_processes_of_their_own(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    prepare(home)
    experiment_id = asyncio.run(fill(home, SampleSize(trials=20, points=3, parameters=2)))
    with real_manager(tmp_path, home=home.path) as manager:

        def readers() -> set[int]:
            return {pid for pid in tagged(manager.tag) if "read_process" in command_of(pid)}

        assert readers() == set()
        assert manager.client.table(experiment_id)["total"] == 20
        [of_tables] = readers()
        assert manager.client.density(experiment_id, width=10, height=10)["curves"] > 0
        [of_charts] = readers() - {of_tables}
        with pytest.raises(BadInput, match="lrr"):  # what is refused there is refused here
            manager.client.table(experiment_id, filter="lrr < 1")
    ended = {of_tables, of_charts}  # by the end of their input, which they see once the manager is gone
    manager.poll_for(lambda: not any("read_process" in command_of(pid) for pid in ended) or None, "their end")


def command_of(pid: int) -> str:
    """Its command line; empty where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""
