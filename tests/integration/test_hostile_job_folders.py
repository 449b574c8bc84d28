"""Whatever a trial does to its job's folder, its end is reported, and neither the keeper nor other jobs wait for it."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually, open_node

from proctor.trial_keeper.protocol import Cancel, EndReason

pytestmark = pytest.mark.anyio

RECORD = '{"kind":"intermediate","value":1}'
REPORT = f"echo '{RECORD}' >> journal"
HOSTILE = {
    "journals of no rank": "for n in 99999999999999999999 01 ٣ 123456; do echo x > journal.$n; done",
    "journals that are pipes": "mkfifo journal.1 journal.2; mkdir journal.3; ln -s /dev/zero journal.4",
    "pipes in place of the keeper's files": "rm exit.json.new reserve; mkfifo exit.json.new reserve journal-anchor.0",
    "links in place of the keeper's files": "rm exit.json.new; ln -s output/target exit.json.new",
    "folders in place of the keeper's files": "rm exit.json.new; mkdir -p exit.json/x exit.json.new/y",
    "a pipe as stderr": "rm stderr; mkfifo stderr; exit 3",
    "a read-only folder": "chmod 500 .",
    "an anchor of nonsense": 'echo \'{"offset": -1e400, "position": [], "mark": "é"}\' > journal-anchor.0',
    "a reserve of nonsense": r"""printf '{"member":"0","record":"\\u00e9"}\n{"member":"0","lost":1e999}\n' > reserve""",
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(tmp_path / "node") as node:
        yield node


async def test_whatever_a_trial_makes_of_its_folder_its_end_is_told(node: Node) -> None:
    launches = {
        what: node.launch(f"T{number}.1", f'cd "$PROCTOR_JOB_DIR"; {REPORT}; {command}')
        for number, (what, command) in enumerate(HOSTILE.items())
    }
    await node.manager.command(*launches.values())
    for what, launch in launches.items():
        end = await node.manager.end_of(launch.job_id)
        assert end.reason == (EndReason.EXITED_ERROR if "stderr" in what else EndReason.EXITED_OK), (what, end)
        assert node.manager.journals[launch.job_id, "0"].startswith(f"{RECORD}\n".encode()), what
    assert {int(member) for _, member in node.manager.journals} <= {0, 1, 2, 3, 4}
    assert not (Path(launches["links in place of the keeper's files"].directory) / "output/target").exists()


async def test_a_stop_does_not_wait_for_a_pipe_in_place_of_control_json(node: Node) -> None:
    hostile = node.launch("T.1", 'cd "$PROCTOR_JOB_DIR"; mkfifo control.json.new; echo > output/ready; sleep 600')
    await node.manager.command(hostile)
    await eventually((node.job_directory("T.1") / "output/ready").exists)
    await node.manager.command(Cancel("T.1", hostile.token))
    assert (await node.manager.end_of("T.1")).reason == EndReason.CANCELED
    assert json.loads((node.job_directory("T.1") / "control.json").read_text())["stop"] is True


async def test_a_trial_that_removes_its_folder_has_ended_as_it_did(node: Node) -> None:
    command = f'cd "$PROCTOR_JOB_DIR"; {REPORT}; while read -t 0.1; do :; done; cd /; rm -rf "$PROCTOR_JOB_DIR"; exit 7'
    await node.manager.command(node.launch("T.1", command))
    end = await node.manager.end_of("T.1")
    assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 7)
    assert node.manager.journals["T.1", "0"] == f"{RECORD}\n".encode()


async def test_a_journal_that_was_renamed_while_no_keeper_ran_is_lost_with_a_record(node: Node) -> None:
    command = f'cd "$PROCTOR_JOB_DIR"; {REPORT}; until [ -e go ]; do sleep 0.05; done; mv journal mine; echo > moved'
    await node.manager.command(node.launch("T.1", f"{command}; until [ -e end ]; do sleep 0.05; done"))
    await node.manager.until(lambda: node.manager.journals.get(("T.1", "0")))
    await node.kill()
    folder = node.job_directory("T.1")
    (folder / "go").touch()
    await eventually((folder / "moved").exists)
    await node.start()
    (folder / "end").touch()
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK
    first, lost = node.manager.journals["T.1", "0"].splitlines()
    assert json.loads(first) == json.loads(RECORD)
    assert json.loads(lost)["kind"] == "lost"
    assert not node.manager.overlaps
    assert os.path.exists(folder / "mine")
