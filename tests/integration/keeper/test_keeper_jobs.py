"""A real keeper runs jobs for a manager: launch, environment, journal, end."""

import json
import os
import sys
from pathlib import Path

import pytest
from fakes.keeper_node import Node, eventually

from proctor.trial_keeper.protocol import EndReason, GpuSlot, RefusedCommand, Update

pytestmark = pytest.mark.anyio

MEMORY_CONTROLLER = Path("/sys/fs/cgroup/memory")
RECORD = '{"kind": "intermediate", "value": 1}'
REPORT = f"""echo '{RECORD}' >> "$PROCTOR_JOB_DIR/journal\""""


async def test_a_launched_job_runs_reports_and_ends(node: Node) -> None:
    end = await node.run(REPORT)
    assert (end.reason, end.code, end.detail) == (EndReason.EXITED_OK, 0, "")
    assert node.manager.journals["T.1", "0"] == f"{RECORD}\n".encode()
    assert json.loads((node.job_directory("T.1") / "parameter.json").read_text())["parameters"] == {"x": 1}
    await eventually(lambda: not list(node.records.path.iterdir()))


async def test_a_checkpoint_that_the_trial_died_in_is_removed_and_a_whole_one_stays(node: Node) -> None:
    draft = '"$PROCTOR_OUTPUT_DIR/checkpoints/.unfinished-$(uname -n)-$$"'
    await node.run(f'mkdir -p "$PROCTOR_OUTPUT_DIR/checkpoints/1" {draft}; kill -9 $$')
    checkpoints = node.job_directory("T.1") / "output" / "checkpoints"
    await eventually(lambda: [path.name for path in checkpoints.iterdir()] == ["1"])  # in the background, after the end


BURN = """
import os, sys, time
if os.fork() == 0:  # a child that is waited for
    while time.process_time() < 0.3:
        pass
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # an orphan, which the reaper waits for
        while time.process_time() < 0.3:
            pass
        open(sys.argv[1], "w").close()
        os._exit(0)
    os._exit(0)
os.wait()
while time.process_time() < 0.3:
    pass
"""


async def test_an_end_has_the_processor_time_of_all_processes_of_the_trial(node: Node) -> None:
    script, done = node.directory / "burn.py", node.directory / "done"
    script.write_text(BURN)
    command = f"{sys.executable} {script} {done}; while [ ! -e {done} ]; do sleep 0.05; done"
    await node.run(command, node.launch("U.1", "true"))
    end, idle = (node.manager.ends[job_id][-1].exit for job_id in ("T.1", "U.1"))
    assert (idle.cpu_seconds or 0.0) < 0.85 <= (end.cpu_seconds or 0.0)  # three times 0.3, in ticks of 10 ms


async def test_the_processor_time_of_a_job_without_its_reaper_is_not_known(node: Node) -> None:
    await node.begin("sleep 60")
    os.kill(node.process("T.1").reaper.pid, 9)
    assert (await node.manager.end_of("T.1")).cpu_seconds is None


@pytest.mark.parametrize(
    ("command", "reason", "code", "number", "detail"),
    [
        ("echo one >&2; echo two >&2; exit 3", "EXITED_ERROR", 3, None, "exit code 3: two"),
        ("there-is-no-such-command", "EXITED_ERROR", 127, None, "exit code 127: command not found"),
        ("kill -SEGV $$", "EXITED_ERROR", None, 11, "killed by signal 11 (SIGSEGV)"),
        ("kill -KILL $$", "SIGNALED", None, 9, "killed by signal 9 (SIGKILL) from outside"),
        ("bash -c 'kill -KILL $$'; exit $?", "SIGNALED", 137, 9, "its command was killed by signal 9"),
    ],
)
async def test_an_end_says_why(
    node: Node, command: str, reason: str, code: int | None, number: int | None, detail: str
) -> None:
    end = await node.run(command)
    assert (end.reason.value, end.code, end.signal) == (reason, code, number)
    assert detail in end.detail


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code_directory": "/there/is/no/such/folder"}, "/there/is/no/such/folder"),
        ({"environment_file": "/there/is/no/such/file"}, "/there/is/no/such/file"),
    ],
)
async def test_a_job_that_cannot_be_started_says_what_is_missing(node: Node, change: dict[str, str], said: str) -> None:
    end = await node.run("true", **change)
    assert end.reason == EndReason.LAUNCH_FAILED
    assert said in end.detail


async def test_launching_twice_is_launching_once(node: Node) -> None:
    ledger = node.directory / "ledger"
    launch = node.launch("T.1", f"echo ran >> {ledger}; sleep 60")
    await node.manager.command(launch, launch)
    first = await node.begin(launch)
    await node.manager.command(launch, node.launch("U.1", "true"))
    await node.manager.end_of("U.1")
    assert ledger.read_text() == "ran\n"
    assert node.process("T.1").trial.pid == first.pid


async def test_a_job_that_has_ended_before_is_reported_again_and_not_started(node: Node) -> None:
    ledger = node.directory / "ledger"
    launch = node.launch("T.1", f"echo ran >> {ledger}; exit 7")
    await node.run(launch)
    await eventually(lambda: not list(node.records.path.iterdir()))
    await node.manager.command(launch)
    await node.manager.until(lambda: len(node.manager.ends["T.1"]) == 2)
    assert [end.exit.code for end in node.manager.ends["T.1"]] == [7, 7]
    assert ledger.read_text() == "ran\n"


async def test_a_trial_finds_its_environment(node: Node) -> None:
    captured = node.directory / "environment.json"
    captured.write_text(json.dumps({"environment": {"PATH": os.environ["PATH"], "A": "1", "PYTHONPATH": "/mine"}}))
    launch = node.launch(
        "T.1",
        "env; pwd",
        environment_file=str(captured),
        environment={"A": "2"},
        gpus=[GpuSlot("GPU-b", 0), GpuSlot("GPU-a", 0)],
    )
    await node.manager.command(launch, node.launch("U.1", "env", gpus=[]), node.launch("V.1", "env"))
    for job_id in ("T.1", "U.1", "V.1"):
        assert (await node.manager.end_of(job_id)).reason == EndReason.EXITED_OK
    lines = node.output("T.1").splitlines()
    assert {"A=2", "CUDA_VISIBLE_DEVICES=GPU-b,GPU-a", "NNI_TRIAL_JOB_ID=T", "PROCTOR_JOB_ID=T.1"} <= set(lines)
    assert any(line.startswith("PYTHONPATH=") and line.endswith(":/mine") for line in lines)
    assert lines[-1] == str(node.directory)
    assert "CUDA_VISIBLE_DEVICES=" in node.output("U.1").splitlines()
    assert "CUDA_VISIBLE_DEVICES" not in node.output("V.1")


async def test_every_member_has_its_own_journal(node: Node) -> None:
    command = f"{REPORT}; for rank in 1 10; do echo $rank >> $PROCTOR_JOB_DIR/journal.$rank; done; echo x >journal.x"
    await node.run(command)
    assert node.manager.journals == {
        ("T.1", "0"): f"{RECORD}\n".encode(),
        ("T.1", "1"): b"1\n",
        ("T.1", "10"): b"10\n",
    }


async def test_a_hundred_megabytes_of_output_do_no_harm(node: Node) -> None:
    before = len(node.manager.headers)
    assert (await node.run(f"head -c 100000000 /dev/zero | tr '\\0' 'x'; {REPORT}")).reason == EndReason.EXITED_OK
    assert (node.job_directory("T.1") / "stdout").stat().st_size == 100_000_000
    assert sum(chunk.length for header in node.manager.headers[before:] for chunk in header.chunks) == len(RECORD) + 1


async def test_a_trial_holds_nothing_of_the_keepers(node: Node) -> None:
    """A descriptor of ours in a trial keeps it open when we die: the keeper would not hear of a killed reaper."""
    await node.run('exec ls /proc/self/fd > "$PROCTOR_JOB_DIR/held"')
    held = (node.job_directory("T.1") / "held").read_text().split()
    assert held == ["0", "1", "2", "3"], "its three streams, and the folder that ls reads"


async def test_a_journal_that_its_trial_has_emptied_goes_on_with_a_word_about_it(node: Node, tmp_path: Path) -> None:
    gate, other = tmp_path / "gate", RECORD.replace("1", "2")
    until_open = f"until test -e {gate}; do sleep 0.1; done"
    anew = f"""echo '{other}' > "$PROCTOR_JOB_DIR/journal\""""
    await node.manager.command(node.launch("T.1", f"{REPORT}; {REPORT}; {until_open}; {anew}"))
    before = f"{RECORD}\n{RECORD}\n".encode()
    await eventually(lambda: node.manager.journals.get(("T.1", "0")) == before)
    gate.touch()
    await node.manager.end_of("T.1")
    first, second, mark, third = node.manager.journals["T.1", "0"].decode().splitlines()
    assert (first, second, third) == (RECORD, RECORD, other)
    assert json.loads(mark)["why"].startswith("the trial rewrote its journal after 74 bytes")


async def test_a_trial_killed_for_memory_is_told_as_that(node: Node) -> None:
    group = MEMORY_CONTROLLER / f"proctor-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * 1024 * 1024))
    except OSError:
        pytest.skip("no memory controller (cgroup v1) can be used here")
    try:
        eat = f"{sys.executable} -c 'import time; x = bytearray(300_000_000); time.sleep(600)'"
        assert (await node.run(f"echo $$ > {group}/cgroup.procs; {eat}")).reason == EndReason.OUT_OF_MEMORY
    finally:
        await eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


async def test_a_launch_or_an_update_that_cannot_be_read_is_refused_with_the_reason(node: Node) -> None:
    launch = node.launch("T.1", "exec sleep 1000", milestone=2**63)
    await node.manager.command(launch, node.launch("T.2", "exec sleep 1000"))
    await node.manager.start_of("T.2")
    await node.manager.command(Update("T.2", node.launch("T.2", "").token, float("nan")))

    def refused() -> list[RefusedCommand]:
        return [each for header in node.manager.headers for each in header.refused]

    await node.manager.until(lambda: len(refused()) == 2)
    problem = "expected a number that can be stored, found"
    assert refused() == [
        RefusedCommand("T.1", launch.token, "Launch", f"milestone: {problem} 9223372036854775808"),
        RefusedCommand("T.2", node.launch("T.2", "").token, "Update", f"max_duration_seconds: {problem} nan"),
    ]
    assert "T.1" not in node.manager.starts
