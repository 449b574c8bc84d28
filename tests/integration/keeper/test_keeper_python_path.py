"""A trial finds the trial side of `proctor` however its command sets PYTHONPATH, or fails at once and says why."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.keeper_node import Node, open_node
from fakes.nni_packages import install_nni

from proctor.trial_keeper.protocol import EndReason

pytestmark = pytest.mark.anyio

PYTHON = f"{sys.executable} -S"  # without what is installed in its environment
TRIAL = """\
import nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result(x)
nni.report_final_result({"default": x, "loss": 0.5})
"""
COMMANDS = [
    f"PYTHONPATH=. {PYTHON} t.py",
    f"export PYTHONPATH=. && {PYTHON} t.py",
    f"env PYTHONPATH=. {PYTHON} t.py",
    f'PYTHONPATH="$PWD/my src:$PYTHONPATH" {PYTHON} t.py',
    f"PYTHONPATH= {PYTHON} t.py",
    f"sh -c 'PYTHONPATH=. {PYTHON} t.py'",
    f"(cd . && PYTHONPATH=. {PYTHON} t.py)",
    f"true;PYTHONPATH='.' {PYTHON} t.py",
    f'X="$(PYTHONPATH=. {PYTHON} t.py)"',
]
LOST = "PYTHONPATH no longer has the folder that Proctor puts there"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with open_node(tmp_path / "node") as node:
        (node.directory / "t.py").write_text(TRIAL)
        yield node


def records(node: Node, job_id: str) -> list[tuple[str, object]]:
    lines = node.manager.journals.get((job_id, "0"), b"").splitlines()
    return [(record["kind"], record["value"]) for record in map(json.loads, lines)]


REPORTED = [("intermediate", 1), ("final", {"default": 1, "loss": 0.5})]


async def test_a_command_that_sets_python_path_still_finds_the_trial_side(node: Node) -> None:
    jobs = {f"T{number}.1": command for number, command in enumerate(COMMANDS)}
    await node.manager.command(*(node.launch(job_id, command) for job_id, command in jobs.items()))
    for job_id, command in jobs.items():
        end = await node.manager.end_of(job_id)
        assert (command, end.reason, end.detail) == (command, EndReason.EXITED_OK, "")
        assert (command, records(node, job_id)) == (command, REPORTED)


@pytest.mark.parametrize("module", ["nni", "proctor", "proctor.sdk"])
async def test_a_script_that_overwrites_python_path_fails_with_what_to_do_about_it(node: Node, module: str) -> None:
    (node.directory / "run.sh").write_text(f"export PYTHONPATH=.\n{PYTHON} -c 'import {module}'\n")
    end = await node.run("bash run.sh")
    assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 1)
    assert f"No module named '{module.partition('.')[0]}'" in end.detail
    assert LOST in end.detail
    assert "PYTHONPATH=src:$PYTHONPATH" in end.detail


@pytest.mark.parametrize("version", [2, 3])
async def test_a_real_nni_that_is_imported_instead_of_ours_fails_at_once(node: Node, version: int) -> None:
    folder = install_nni(node.directory / "site", version)
    (node.directory / "run.sh").write_text(f"PYTHONPATH={folder} {PYTHON} t.py\n")
    end = await node.run("bash run.sh")
    assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 1)
    assert LOST in end.detail


async def test_a_real_nni_3_that_is_found_before_ours_reports_to_this_manager(node: Node) -> None:
    folder = install_nni(node.directory / "site", 3)
    (node.directory / "run.sh").write_text(f"PYTHONPATH={folder}:$PYTHONPATH {PYTHON} t.py\n")
    end = await node.run("bash run.sh")
    assert (end.reason, end.detail) == (EndReason.EXITED_OK, "")
    assert records(node, "T.1") == REPORTED
