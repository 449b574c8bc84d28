"""A real keeper runs jobs for a manager: launch, journal, end."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually, open_node

from proctor.trial_keeper.protocol import EndReason

pytestmark = pytest.mark.anyio


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(tmp_path) as node:
        yield node


RECORD = '{"kind": "intermediate", "value": 1}'
REPORT = f"""echo '{RECORD}' >> "$PROCTOR_JOB_DIR/journal\""""


async def test_a_launched_job_runs_reports_and_ends(node: Node) -> None:
    await node.manager.command(node.launch("T.1", REPORT))
    end = await node.manager.end_of("T.1")
    assert (end.reason, end.code, end.detail) == (EndReason.EXITED_OK, 0, "")
    assert node.manager.journals["T.1", "0"] == f"{RECORD}\n".encode()
    assert json.loads((node.job_directory("T.1") / "parameter.json").read_text())["parameters"] == {"x": 1}
    await eventually(lambda: not list(node.records.path.iterdir()))
