"""Stopping a job ends everything of it, however it has hidden, and nothing else."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_node import Node, eventually, open_node, readable

from proctor.trial_keeper.linux.processes import descendants, survey
from proctor.trial_keeper.protocol import Cancel, EndReason, Launch, Shutdown, Update

pytestmark = pytest.mark.anyio

# A launcher like torchrun: workers in sessions of their own, which ignore SIGTERM, and a launcher that waits for them.
TORCHRUN = """
import os, signal, subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
workers = [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(3)]
open(os.environ["PROCTOR_OUTPUT_DIR"] + "/ready", "w").close()
for worker in workers:
    worker.wait()
"""
SAVER = """
import os, sys, time
import proctor
output = os.environ["PROCTOR_OUTPUT_DIR"]
proctor.should_stop()
open(output + "/ready", "w").close()
while not proctor.should_stop():
    time.sleep(0.02)
asked = proctor.stop_request()
print(asked.request, asked.reason, asked.seconds_left > 0, flush=True)
open(output + "/saving", "w").close()
while not os.path.exists(output + "/go"):
    time.sleep(0.02)
print("saved", flush=True)
"""
READY = 'touch "$PROCTOR_OUTPUT_DIR/ready"'
HIDERS = {
    "plain": f"{READY}; sleep 600",
    "setsid": f"setsid sleep 600 & {READY}; sleep 600",
    "double fork": f"( ( setsid sleep 600 & ) & ) ; {READY}; sleep 600",
    "no environment": f"setsid env -i sleep 600 & (env -i sleep 600 &); {READY}; sleep 600",
    "ignores SIGTERM": f"trap '' TERM; {READY}; while true; do sleep 1; done",
    "stopped": f"sleep 600 & kill -STOP $!; {READY}; kill -STOP $$",
    "torchrun": f"{sys.executable} $PROCTOR_OUTPUT_DIR/launcher.py",
}


async def start_ready(node: Node, launch: Launch) -> int:
    """Start a job and wait until it says that it is ready; returns the trial's pid."""
    output = Path(launch.directory) / "output"
    output.mkdir(parents=True)
    (output / "launcher.py").write_text(TORCHRUN)
    (output / "saver.py").write_text(SAVER)
    await node.manager.command(launch)
    await node.manager.start_of(launch.job_id)
    await eventually((output / "ready").exists)
    return node.process(launch.job_id).trial.pid


def tag_of(node: Node, job_id: str) -> dict[str, str]:
    """The environment by which a process is known as one of the job's."""
    return {"PROCTOR_JOB_ID": job_id, "PROCTOR_JOB_DIR": str(node.job_directory(job_id))}


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return pid in survey()


@pytest.mark.parametrize("hider", [*HIDERS, "below a stopped reaper"])
async def test_a_cancelled_job_leaves_nothing(node: Node, hider: str) -> None:
    await start_ready(node, node.launch("T.1", HIDERS.get(hider, HIDERS["plain"])))
    reaper = node.process("T.1").reaper.pid
    everything = descendants(survey(), (reaper,))
    assert everything
    if hider == "below a stopped reaper":
        os.kill(reaper, signal.SIGSTOP)
    end = await node.cancel()
    assert end.reason == EndReason.CANCELED
    assert not [pid for pid in everything if alive(pid)]
    assert node.members("T.1") == []


async def test_a_trial_that_listens_may_finish_within_its_grace(node: Node) -> None:
    script = "trap 'echo saved; exit 0' TERM; touch $PROCTOR_OUTPUT_DIR/ready; while true; do sleep 0.05; done"
    await start_ready(node, node.launch("T.1", script))
    end = await node.cancel(grace_seconds=20)
    assert (end.reason, end.code) == (EndReason.CANCELED, 0)
    assert node.output("T.1") == "saved\n"
    assert json.loads((node.job_directory("T.1") / "control.json").read_text())["stop"] is True


async def test_a_process_of_the_job_started_through_another_daemon_ends_too(node: Node) -> None:
    await start_ready(node, node.launch("T.1", HIDERS["plain"]))
    stranger = await asyncio.create_subprocess_exec(
        "sleep", "600", env={**os.environ, **tag_of(node, "T.1")}, start_new_session=True
    )
    other = await asyncio.create_subprocess_exec("sleep", "600", env={**os.environ, **tag_of(node, "T.11")})
    twin = await asyncio.create_subprocess_exec(
        "sleep", "600", env={**os.environ, "PROCTOR_JOB_ID": "T.1", "PROCTOR_JOB_DIR": "/of/another/manager"}
    )
    await node.cancel()
    assert await stranger.wait() == -15
    for process in (other, twin):
        assert alive(process.pid)
        process.kill()
        await process.wait()


async def test_a_stray_process_of_a_job_that_ended_by_itself_is_swept_up(node: Node) -> None:
    stray = await asyncio.create_subprocess_exec("sleep", "600", env={**os.environ, **tag_of(node, "T.1")})
    await node.run("true")
    assert await asyncio.wait_for(stray.wait(), 30) == -15


async def test_orders_with_another_token_are_left(node: Node) -> None:
    await start_ready(node, node.launch("T.1", HIDERS["plain"]))
    await node.manager.command(Cancel("T.1", "an old token", grace_seconds=0), node.launch("U.1", "true"))
    await node.manager.end_of("U.1")
    assert "T.1" not in node.manager.ends
    assert alive(node.process("T.1").trial.pid)


async def test_a_job_is_stopped_before_it_has_started_only_once(node: Node) -> None:
    assert (await node.run("sleep 600", Cancel("T.1", "token of T.1", grace_seconds=0.5))).reason == EndReason.CANCELED


async def test_duration_limits_and_leases_end_jobs_while_the_manager_is_away_and_no_others(node: Node) -> None:
    limited = await start_ready(node, node.launch("T.1", HIDERS["plain"], max_duration_seconds=1.0))
    leased = await start_ready(node, node.launch("U.1", HIDERS["plain"], lease_seconds=1.0))
    other = await start_ready(node, node.launch("V.1", HIDERS["plain"]))
    await node.manager.stop()
    await eventually(lambda: not alive(limited) and not alive(leased))
    await node.manager.start()
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.DEADLINE
    assert "1 s" in end.detail
    assert (await node.manager.end_of("U.1")).reason == EndReason.LEASE_EXPIRED
    assert alive(other)


async def test_the_duration_limit_survives_the_keeper_and_counts_from_the_start(node: Node) -> None:
    await start_ready(node, node.launch("T.1", HIDERS["plain"], max_duration_seconds=1.5))
    await node.replace_keeper()
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.DEADLINE
    assert end.ended_at - end.started_at >= 1.5


async def test_a_duration_limit_can_be_changed_while_the_job_runs(node: Node) -> None:
    await start_ready(node, node.launch("T.1", HIDERS["plain"], max_duration_seconds=600))
    await start_ready(node, node.launch("U.1", HIDERS["plain"], max_duration_seconds=600))
    no_limit = Update("U.1", "token of U.1", max_duration_seconds=None)
    await node.manager.command(Update("T.1", "token of T.1", max_duration_seconds=0.1), no_limit)
    assert (await node.manager.end_of("T.1")).reason == EndReason.DEADLINE
    record = Path(node.records.record_file("U.1"))
    await eventually(lambda: json.loads(record.read_text())["launch"]["max_duration_seconds"] is None)
    assert "U.1" not in node.manager.ends


async def test_a_keeper_told_to_shut_down_leaves_when_its_last_job_has_ended(node: Node) -> None:
    pid = await node.start()
    keeper = os.pidfd_open(pid)
    await start_ready(node, node.launch("T.1", HIDERS["plain"]))
    await node.manager.command(Shutdown(), Cancel("T.1", "token of T.1", grace_seconds=0))
    await node.manager.end_of("T.1")
    await readable(keeper)
    os.close(keeper)


async def test_a_keeper_whose_manager_has_gone_leaves_when_no_job_runs_and_the_next_one_tells_of_its_last(
    tmp_path: Path,
) -> None:
    async with open_node(tmp_path / "node", linger_seconds=0.5) as node:
        keeper = os.pidfd_open(await node.start())
        go = node.directory / "go"
        await start_ready(node, node.launch("T.1", f"{READY}; while [ ! -e {go} ]; do sleep 0.05; done"))
        await node.manager.stop()
        go.touch()
        await readable(keeper)
        os.close(keeper)
        assert "no job runs, and there has been no manager for 0.5 s" in (node.keeper_directory / "log").read_text()
        await node.manager.start()
        await node.start()
        assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK


@pytest.mark.parametrize("answer", ["unknown", "fenced"])
async def test_a_job_that_is_not_the_managers_is_stopped_and_forgotten(node: Node, answer: str) -> None:
    report = "echo x >> $PROCTOR_JOB_DIR/journal"
    command = f"{READY}; while true; do sleep 0.2; {report}; done"
    pid = await start_ready(node, node.launch("T.1", command))
    getattr(node.manager, answer).add("T.1")
    if answer == "unknown":
        await node.manager.forget_session()
    await eventually(lambda: not alive(pid))
    await eventually(lambda: not list(node.records.path.iterdir()))
    assert "T.1" not in node.manager.ends


async def start_saver(node: Node, job_id: str = "T.1", **changes: Any) -> Path:
    """Start a job that saves when it is asked to stop, until there is a file `go`; returns its output folder."""
    output = node.job_directory(job_id) / "output"
    await start_ready(node, node.launch(job_id, f"{sys.executable} $PROCTOR_OUTPUT_DIR/saver.py", **changes))
    return output


def soft(job_id: str = "T.1", *, seconds: float = 60.0, only_if_able: bool = True) -> Cancel:
    """The command to stop a job softly."""
    token = f"token of {job_id}"
    return Cancel(job_id, token, 0.5, reason="to rest", save_seconds=seconds, only_if_able=only_if_able)


def control_of(node: Node, job_id: str = "T.1") -> dict[str, Any]:
    """What the trial receives."""
    body: dict[str, Any] = json.loads((node.job_directory(job_id) / "control.json").read_text())
    return body


async def test_a_trial_that_asks_whether_to_stop_saves_before_it_is_signaled(node: Node) -> None:
    output = await start_saver(node)
    before = time.time()
    await node.manager.command(soft())
    await eventually((output / "saving").exists)
    control = control_of(node)
    assert (control["stop"], control["request"], control["reason"]) == (True, "stop", "to rest")
    assert before + 60 <= control["deadline"] <= time.time() + 60
    (output / "go").touch()
    end = await node.manager.end_of("T.1")
    assert (end.reason, end.code) == (EndReason.EXITED_OK, 0)
    assert node.output("T.1") == "stop to rest True\nsaved\n"


async def test_a_trial_that_does_not_save_in_time_is_signaled(node: Node) -> None:
    output = await start_saver(node)
    await node.manager.command(soft(seconds=0.3))
    assert (await node.manager.end_of("T.1")).reason == EndReason.CANCELED
    assert (output / "saving").exists()
    assert "saved" not in node.output("T.1")


async def test_a_trial_that_never_asks_is_signaled_at_once_unless_time_was_configured(node: Node) -> None:
    command = f"trap 'cat $PROCTOR_JOB_DIR/control.json; exit 0' TERM; {READY}; while true; do sleep 0.05; done"
    await start_ready(node, node.launch("T.1", command))
    before = time.time()
    await node.manager.command(soft(seconds=600))
    assert (await node.manager.end_of("T.1")).reason == EndReason.CANCELED
    assert control_of(node)["deadline"] < before + 600
    await start_ready(node, node.launch("U.1", HIDERS["plain"]))
    await node.manager.command(soft("U.1", seconds=600, only_if_able=False))
    await eventually((node.job_directory("U.1") / "control.json").exists)
    assert control_of(node, "U.1")["deadline"] >= before + 600
    await node.manager.command(soft("U.1", seconds=0))
    assert (await node.manager.end_of("U.1")).reason == EndReason.CANCELED


@pytest.mark.parametrize("has", ["its own checkpoint", "one to continue from"])
async def test_a_trial_with_a_checkpoint_is_given_time_to_save(node: Node, has: str) -> None:
    changes = {"resume_checkpoint": "/a/checkpoint"} if has == "one to continue from" else {}
    await start_ready(node, node.launch("T.1", HIDERS["plain"], **changes))
    if not changes:
        (node.job_directory("T.1") / "output/checkpoints/3").mkdir(parents=True)
    before = time.time()
    await node.manager.command(soft(seconds=600))
    await eventually((node.job_directory("T.1") / "control.json").exists)
    assert control_of(node)["deadline"] >= before + 600
    assert (await node.cancel()).reason == EndReason.CANCELED


async def test_a_repeated_order_does_not_prolong_the_time_to_save_and_a_kill_ends_it(node: Node) -> None:
    output = await start_saver(node)
    await node.manager.command(soft(seconds=60))
    await eventually((output / "saving").exists)
    deadline = control_of(node)["deadline"]
    await node.manager.command(soft(seconds=600), node.launch("U.1", "true"))
    await node.manager.end_of("U.1")  # the command before it has been carried out
    assert control_of(node)["deadline"] == pytest.approx(deadline, abs=1e-3)
    assert (await node.cancel()).reason == EndReason.CANCELED
    assert control_of(node)["deadline"] < deadline
    assert control_of(node)["reason"] == "to rest"


async def test_the_next_keeper_keeps_the_deadline_of_a_soft_stop(node: Node) -> None:
    output = await start_saver(node)
    await start_saver(node, "U.1")
    await node.manager.command(soft(seconds=600), soft("U.1", seconds=3.0))
    await eventually((output / "saving").exists)
    await eventually((node.job_directory("U.1") / "output/saving").exists)
    deadline = control_of(node)["deadline"]
    await node.replace_keeper()
    assert (await node.manager.end_of("U.1")).reason == EndReason.CANCELED  # its deadline has come
    assert alive(node.process("T.1").trial.pid)
    assert control_of(node)["deadline"] == pytest.approx(deadline, abs=1e-3)
    (output / "go").touch()
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK
    assert node.output("T.1").endswith("saved\n")


async def test_jobs_that_a_suspended_spawner_cannot_start_say_so_and_can_be_stopped(node: Node) -> None:
    await node.begin("sleep 600")
    spawner = node.spawner("T.1")
    os.kill(spawner, signal.SIGSTOP)
    try:
        await node.manager.command(*(node.launch(f"{name}.1", "true") for name in "UV"))
        stopped = await node.manager.until(lambda: len(printed := node.manager.headers[-1].stopped) == 3 and printed)
        assert stopped.keys() == {"", "U.1", "V.1"}
        assert all(f"kill -CONT {spawner}" in clause for clause in stopped.values())
        assert (await node.cancel("U.1")).reason == EndReason.CANCELED
    finally:
        os.kill(spawner, signal.SIGCONT)
    assert (await node.manager.end_of("V.1")).reason == EndReason.EXITED_OK
    await node.manager.until(lambda: node.manager.headers[-1].stopped == {})
    assert "U.1" not in node.manager.starts


async def test_a_suspended_reaper_is_named_until_it_goes_on(node: Node) -> None:
    await node.begin("sleep 0.2; exit 3")
    reaper = node.process("T.1").reaper.pid
    os.kill(reaper, signal.SIGSTOP)
    try:
        stopped = await node.manager.until(lambda: node.manager.headers[-1].stopped)
        assert f"its reaper (pid {reaper}) is stopped (SIGSTOP); resume it with: kill -CONT" in stopped["T.1"]
        assert "T.1" not in node.manager.ends
    finally:
        os.kill(reaper, signal.SIGCONT)
    assert (await node.manager.end_of("T.1")).code == 3
    await node.manager.until(lambda: node.manager.headers[-1].stopped == {})
