"""The keeper of a pod, as pid 1 of a namespace of its own, with a manager that it reaches by TLS."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fakes.keeper_node import eventually
from fakes.pods import INSTANCE, JOB, open_pod

from proctor.trial_keeper.pod_output import FinalMetric
from proctor.trial_keeper.protocol import Cancel, EndReason, GpuSlot, ReadFile, Shutdown, Update

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="making a PID namespace takes root and unshare"
    ),
]

REPORT = """echo '{"kind": "%s", "value": %s}' >> $PROCTOR_JOB_DIR/journal; """
FINAL = REPORT % ("final", "0.5")
FINAL_LINE = b'{"kind": "final", "value": 0.5}'
SAVING = """touch $PROCTOR_JOB_DIR/can-save; while [ ! -e $PROCTOR_JOB_DIR/control.json ]; do sleep 0.02; done; """


def children(pid: int) -> dict[int, str]:
    """The states of a process's children."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        found[int(child)] = fields[0]
    return found


async def test_a_pod_gets_its_launch_over_the_link_and_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    async with open_pod(tmp_path) as pod:
        given = [GpuSlot("GPU-1", 0)]
        command = FINAL + "echo ${CUDA_VISIBLE_DEVICES-not set}; exit 3"
        await pod.manager.command(pod.launch(command, gpus=given))
        end = await pod.manager.end_of(JOB)
        assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 3)
        assert pod.manager.journals[JOB, "0"] == FINAL_LINE + b"\n"
        assert (await pod.manager.ask(ReadFile("read", "job", "stdout", 0, 100)))[1] == b"not set\n"
        assert pod.manager.registrations[0].instance == INSTANCE
        assert not (tmp_path / "pod" / "gpu-locks").exists()
        assert not list((tmp_path / "pod").rglob("*.pyc"))
        await pod.manager.command(Shutdown())
        assert await pod.ended() == 0
        message = pod.read_termination()
        assert message is not None
        assert (message.exit, message.finals) == (end, {"0": FinalMetric(0, FINAL_LINE)})
        assert (tmp_path / "stdout").read_bytes() == b""


async def test_pid_1_reaps_what_others_leave_behind(tmp_path: Path) -> None:
    async with open_pod(tmp_path) as pod:
        await pod.manager.command(pod.launch("sleep 600"))
        await pod.manager.start_of(JOB)
        keeper = await pod.keeper_pid()
        enter = ["nsenter", "--target", str(keeper), "--pid", "--mount"]
        go = tmp_path / "go"
        leaving = [*enter, "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done > /dev/null 2>&1 & echo"]
        orphan = await asyncio.to_thread(subprocess.run, leaving, capture_output=True, check=True)
        assert orphan.stdout == b"\n"
        before = children(keeper)
        assert len(before) == 2, "the spawner and the orphan"
        go.touch()
        await eventually(lambda: len(children(keeper)) == 1)
        assert "Z" not in children(keeper).values()


async def test_a_pod_starts_one_python_and_another_spawner_where_the_first_was_killed(tmp_path: Path) -> None:
    async with open_pod(tmp_path) as pod:
        keeper = await pod.keeper_pid()
        await eventually(lambda: pod.manager.registrations)
        (spawner,) = children(keeper)
        process = Path(f"/proc/{spawner}")
        assert (process / "cmdline").read_bytes() == Path(f"/proc/{keeper}/cmdline").read_bytes(), (
            "a fork of the keeper"
        )
        held = {os.readlink(descriptor) for descriptor in (process / "fd").iterdir()}
        assert len({name.split(":")[0] for name in held} - {"socket", "/dev/null"}) == 1, "its log, and no lock"
        os.kill(spawner, signal.SIGKILL)
        await eventually(lambda: not children(keeper))
        await pod.manager.command(pod.launch(FINAL + "readlink /proc/self/fd/0"))
        end = await pod.manager.end_of(JOB)
        assert (end.reason, end.code) == (EndReason.EXITED_OK, 0)
        assert (await pod.manager.ask(ReadFile("read", "job", "stdout", 0, 100)))[1] == b"/dev/null\n"


async def test_one_pod_runs_one_job(tmp_path: Path) -> None:
    async with open_pod(tmp_path) as pod:
        await pod.manager.command(pod.launch("sleep 600"))
        await pod.manager.start_of(JOB)
        other = pod.launch("sleep 600")
        await pod.manager.command(type(other)(**{**vars(other), "job_id": "U.1"}))
        await eventually(lambda: f"(Launch) is refused: this pod is for job {JOB}" in pod.said())
        await pod.manager.command(Cancel(JOB, f"token of {JOB}", grace_seconds=0.1))
        assert (await pod.manager.end_of(JOB)).reason == EndReason.CANCELED
        assert "U.1" not in pod.manager.starts


async def test_sigterm_lets_the_trial_save_and_its_end_is_preempted(tmp_path: Path) -> None:
    async with open_pod(tmp_path, "--grace-seconds", "40") as pod:
        await pod.manager.command(pod.launch(SAVING + FINAL + "cp $PROCTOR_JOB_DIR/control.json $PROCTOR_JOB_DIR/seen"))
        await eventually((pod.job_directory / "can-save").exists)
        await pod.terminate()
        end = await pod.manager.end_of(JOB)
        assert (end.reason, end.code) == (EndReason.PREEMPTED, 0)
        assert "SIGTERM" in end.detail
        assert json.loads((pod.job_directory / "seen").read_text())["request"] == "preempt"
        assert pod.manager.journals[JOB, "0"] == FINAL_LINE + b"\n"
        await pod.manager.command(Shutdown())
        assert await pod.ended() == 0


async def test_sigterm_ends_a_trial_that_ignores_it_within_the_grace(tmp_path: Path) -> None:
    async with open_pod(tmp_path, "--grace-seconds", "2") as pod:
        await pod.manager.command(
            pod.launch("trap '' TERM; touch $PROCTOR_JOB_DIR/ready; while true; do sleep 0.1; done")
        )
        await eventually((pod.job_directory / "ready").exists)
        await pod.terminate()
        await pod.terminate()
        end = await pod.manager.end_of(JOB)
        assert (end.reason, end.signal) == (EndReason.PREEMPTED, signal.SIGKILL)
        assert await pod.ended() == 0, "without a word of the manager"


@pytest.mark.parametrize("has_job", [False, True])
async def test_a_pod_that_the_manager_turns_away_stops_its_job_and_leaves(tmp_path: Path, has_job: bool) -> None:
    async with open_pod(tmp_path, "--grace-seconds", "2" if has_job else "600") as pod:
        if has_job:
            await pod.manager.command(pod.launch("sleep 600"))
            await pod.manager.start_of(JOB)
        pod.manager.turns_away = True
        await pod.manager.stop()
        await pod.manager.start()
        assert await pod.ended() == 0
        assert "job T.1 has another keeper" in pod.said()
        message = pod.read_termination()
        assert (message is not None) == has_job
        assert message is None or message.exit.reason == EndReason.PREEMPTED


async def test_a_pod_without_a_job_leaves_at_once(tmp_path: Path) -> None:
    async with open_pod(tmp_path, "--grace-seconds", "600") as pod:
        await pod.manager.until(lambda: pod.manager.registrations)
        await pod.terminate()
        assert await pod.ended() == 0
        assert pod.read_termination() is None


async def test_what_no_manager_has_acknowledged_is_in_the_log_and_in_the_termination_message(tmp_path: Path) -> None:
    go = tmp_path / "go"
    command = REPORT % ("intermediate", "1") + f"while [ ! -e {go} ]; do sleep 0.02; done; "
    command += "printf 'b\\xf6se\\n' >> $PROCTOR_JOB_DIR/journal; for i in $(seq 2000); do echo $i; done >> "
    command += f"$PROCTOR_JOB_DIR/journal; {FINAL} exit 0"
    async with open_pod(tmp_path, "--linger-seconds", "1") as pod:
        await pod.manager.command(pod.launch(command))
        await pod.manager.until(lambda: (JOB, "0") in pod.manager.journals)
        await pod.manager.stop()
        go.touch()
        assert await pod.ended() == 0
        stored = pod.manager.journals[JOB, "0"]
        found = pod.read_log()
        await pod.manager.start()
    assert found.is_whole
    assert found.header.chunks[0].offset == len(stored)
    assert {chunk.token for chunk in found.header.chunks} == {f"token of {JOB}"}
    assert stored + found.body == (pod.job_directory / "journal").read_bytes()
    (end,) = found.header.ends
    assert (end.job_id, end.token, end.exit.reason) == (JOB, f"token of {JOB}", EndReason.EXITED_OK)
    message = pod.read_termination()
    assert message is not None
    written = (tmp_path / "pod" / "job" / "journal").read_bytes()
    assert (message.exit, message.finals) == (end.exit, {"0": FinalMetric(written.index(FINAL_LINE), FINAL_LINE)})
    assert "token of" not in pod.termination_file.read_text() + (tmp_path / "stdout").read_text() + pod.said()


@pytest.mark.parametrize("place", ["pod.leave.before", "pod.leave.after"])
async def test_a_pod_that_is_killed_while_it_leaves_has_written_everything_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("PROCTOR_FAILPOINT", place)
    async with open_pod(tmp_path, "--linger-seconds", "1", is_init=False) as pod:
        await pod.manager.command(pod.launch("echo 1 >> $PROCTOR_JOB_DIR/journal; sleep 0.5"))
        await pod.manager.start_of(JOB)
        await pod.manager.stop()
        assert await pod.ended() == -signal.SIGKILL
        await pod.manager.start()
        ends = [end.exit for end in pod.read_log().header.ends]
        message = pod.read_termination()
        assert [message.exit for message in [message] if message is not None] == ends
        assert (len(ends), pod.read_log().is_whole) == ((0, False) if place.endswith("before") else (1, True))


async def test_a_pod_that_no_manager_answers_gives_up_waiting_for_its_launch(tmp_path: Path) -> None:
    async with open_pod(tmp_path, "--linger-seconds", "1") as pod:
        await pod.manager.stop()
        assert await pod.ended() == 0
        assert "no manager listens on https://127.0.0.1:" in pod.said()
        assert "there has been no manager for 1 s" in pod.said()
        await pod.manager.start()


async def test_a_manager_that_comes_back_finds_the_pod_and_the_job_is_not_started_again(tmp_path: Path) -> None:
    async with open_pod(tmp_path, "--linger-seconds", "600") as pod:
        go = tmp_path / "go"
        command = f"echo $$ >> {tmp_path}/ledger; while [ ! -e {go} ]; do sleep 0.02; done; {FINAL}"
        await pod.manager.command(pod.launch(command))
        await pod.manager.start_of(JOB)
        await pod.manager.stop()
        await pod.manager.start()
        await pod.manager.until(lambda: len(pod.manager.registrations) == 2)
        await pod.manager.command(Update(JOB, f"token of {JOB}", 600.0))
        go.touch()
        assert (await pod.manager.end_of(JOB)).reason == EndReason.EXITED_OK
        assert len((tmp_path / "ledger").read_text().split()) == 1
        assert not pod.manager.overlaps


@pytest.mark.parametrize(
    ("option", "code", "sentence"),
    [
        ("--directory=/proc/none", 1, "/proc/none cannot be written: No such file or directory; it needs a folder"),
        ("--linger-seconds=nan", 2, "expected a number of seconds above 0, found 'nan'"),
        ("--grace-seconds=-1", 2, "expected a number of seconds above 0, found '-1'"),
    ],
)
def test_what_keeps_a_pod_from_coming_up_is_the_last_line_of_its_log(option: str, code: int, sentence: str) -> None:
    given = ["--directory", "/proc/none", "--node-id", "n", "--pointer", "/none", "--secret-file", "/none", option]
    command = [sys.executable, "-m", "proctor.trial_keeper", "pod", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert sentence in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("counts", [True, False])
async def test_a_kill_counts_as_out_of_memory_where_the_own_control_group_says_so(
    tmp_path: Path, version: int, counts: bool
) -> None:
    counter = tmp_path / "cgroup" / ("memory.events" if version == 2 else "memory/memory.oom_control")
    counter.parent.mkdir(parents=True)
    text = (
        "low 0\nhigh 0\nmax 9\noom 3\noom_kill {}\n"
        if version == 2
        else "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
    )
    counter.write_text(text.format(2))
    (tmp_path / "later").write_text(text.format(3 if counts else 2))
    async with open_pod(tmp_path, "--cgroup", str(tmp_path / "cgroup")) as pod:
        await pod.manager.command(pod.launch(f"cp {tmp_path}/later {counter}; kill -9 $$"))
        expected = EndReason.OUT_OF_MEMORY if counts else EndReason.SIGNALED
        assert (await pod.manager.end_of(JOB)).reason == expected


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 96 MiB of memory; v1 or v2, whatever this machine has."""
    parents = [path for path in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if os.access(path, os.W_OK)]
    for parent in parents:
        folder = parent / f"proctor-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        limit = folder / ("memory.limit_in_bytes" if (folder / "memory.limit_in_bytes").exists() else "memory.max")
        if limit.exists():
            limit.write_text(str(96 * 1024 * 1024))
            yield folder
            for _ in range(200):  # its last process may still be dying
                with suppress(OSError):
                    folder.rmdir()
                    return
                time.sleep(0.05)
            raise AssertionError(f"{folder} is still in use")
        folder.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


async def test_a_trial_that_takes_more_memory_than_its_pod_has_is_out_of_memory(
    tmp_path: Path, small_group: Path
) -> None:
    async with open_pod(tmp_path, cgroup_processes=small_group / "cgroup.procs") as pod:
        await pod.manager.command(pod.launch("exec python3 -c 'data = bytearray(1 << 30)'"))
        assert (await pod.manager.end_of(JOB, seconds=60)).reason == EndReason.OUT_OF_MEMORY
        assert pod.process.poll() is None
