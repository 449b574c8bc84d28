"""The files of jobs whose pods share no folder with the manager: code and checkpoints on the way there, logs and
checkpoints on the way back, before the pod is removed."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from contract.test_job_keeper_service import JobKeeperHarness
from fakes.process_platform import ProcessService

from proctor.sdk.protocol import ENV_CHECKPOINT_STORAGE
from proctor.training_services.base import CheckpointOffer, EndReason, Exit, JobStart, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused, TrainingServiceError
from proctor.training_services.job_keepers import departures, staging
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import Recorder, serving

pytestmark = pytest.mark.anyio

SMALL, LARGE = 1_000, 300_000
LIMIT = 200_000
TRIAL = """\
import pathlib, sys, tempfile, time
import proctor

count, size, gate = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resumed = proctor.get_checkpoint()
step = int(pathlib.Path(resumed, "step").read_text()) if resumed else 0
print(f"begins at {step}", flush=True)
for _ in range(count):
    step += 1
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "step").write_text(str(step))
        pathlib.Path(folder, "weights").write_bytes(bytes(size))
        proctor.report(step, checkpoint=folder)
while gate != "-" and not pathlib.Path(gate).exists():
    time.sleep(0.02)
"""


class FilesHarness(JobKeeperHarness):
    """With a service that collects files and copies checkpoints of some 200 kB only."""

    checkpoint_limit = 10 * LARGE

    def make_service(self) -> ProcessService:
        return ProcessService(
            self.context(),
            self.platform,
            collect_limit_bytes=LIMIT,
            checkpoint_limit_bytes=self.checkpoint_limit,
        )

    @property
    def gate(self) -> Path:
        """What a job that waits waits for."""
        return self.directory / "gate"

    def job(
        self,
        name: str = "first",
        *,
        number: int = 1,
        saves: int = 1,
        size: int = SMALL,
        waits: bool = False,
        offers: Sequence[CheckpointOffer] = (),
    ) -> TrialJobForm:
        """A job of a trial that saves checkpoints of this size, and waits for the gate."""
        (self.code_directory / "trial.py").write_text(TRIAL)
        command = f"{sys.executable} trial.py {saves} {size} {self.gate if waits else '-'}"
        directory = str(self.trials_directory / f"0-{name}" / "jobs" / str(number))
        job = {"job_id": f"{name}.{number}", "number": number, "directory": directory}
        return self.form_of(command, name, checkpoints=tuple(offers), **job)

    def pod_path(self, form: TrialJobForm, path: str = "") -> Path:
        """Where something of a job is in its pod."""
        folder = f"experiments/{self.experiment_id}/trials/0-{form.trial_id}/jobs/{form.number}"
        return self.platform.folder_of(form.job_id) / "keeper" / folder / path


def offer(recorder: Recorder, form: TrialJobForm, number: int) -> CheckpointOffer:
    """A checkpoint that a job has registered."""
    path = f"output/checkpoints/{number}"
    records = [json.loads(line) for line in recorder.journals[form.job_id].splitlines()]
    manifest = next(record["manifest"] for record in records if record.get("path") == path)
    return CheckpointOffer(form.job_id, f"{form.directory}/{path}", number, manifest=manifest)


def registered(recorder: Recorder, form: TrialJobForm) -> int:
    """How many checkpoints a job has registered."""
    return recorder.journals.get(form.job_id, b"").count(b'"kind":"checkpoint"')


@pytest.fixture
async def harness(tmp_path: Path, anyio_backend: str) -> AsyncIterator[FilesHarness]:
    async with FilesHarness(tmp_path).opened() as harness:
        yield harness
    harness.platform.close()


@pytest.fixture
def recorder(harness: FilesHarness) -> Recorder:
    """It listens to the service."""
    made = Recorder()
    made.listen(harness.service)
    return made


@pytest.fixture
async def served(harness: FilesHarness, recorder: Recorder) -> AsyncIterator[FilesHarness]:
    """Its service runs, and the recorder listens to it."""
    async with serving(harness.service):
        yield harness


async def begin(harness: FilesHarness, recorder: Recorder, form: TrialJobForm, saves: int = 1) -> None:
    """Submit a job, and wait until it has saved so many checkpoints."""
    await harness.service.submit_trial_job(form)
    await recorder.until(lambda: registered(recorder, form) == saves)


async def finish(harness: FilesHarness, recorder: Recorder, form: TrialJobForm) -> Exit:
    """Wait for a job's end, and until its pod is removed."""
    end = await recorder.end_of(form.job_id)
    assert await harness.leftovers() == []
    assert end.exit is not None
    return end.exit


async def run_job(harness: FilesHarness, recorder: Recorder, form: TrialJobForm) -> JobStart | None:
    """Run a job to its end and until its pod is removed; where it began."""
    await harness.service.submit_trial_job(form)
    exit = await finish(harness, recorder, form)
    assert exit.reason is EndReason.EXITED_OK, exit.detail
    return next((change.start for change in recorder.of(form.job_id) if change.start is not None), None)


async def read(harness: FilesHarness, form: TrialJobForm, path: str) -> bytes:
    return await harness.service.read_job_file(form, path, 0, 1000)


@pytest.mark.slow
async def test_the_code_is_sent_and_logs_are_read_while_the_job_runs_and_afterwards(
    served: FilesHarness, recorder: Recorder
) -> None:
    (served.directory / "code" / "data").mkdir()
    (served.directory / "code" / "data" / "names").write_text("a, b")
    (served.directory / "code" / ".proctorignore").write_text("weights\n")
    (served.directory / "code" / "weights").write_text("too large to travel")
    command = f"cat data/names; pwd >&2; ls > $PROCTOR_OUTPUT_DIR/ls; while [ ! -e {served.gate} ]; do sleep 0.02; done"
    form = served.form_of(command)
    await served.service.submit_trial_job(form)
    await recorder.start_of(form.job_id)
    while await read(served, form, "output/ls") != b"data\n":  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert not Path(form.directory).exists()
    assert await read(served, form, "stdout") == b"a, b"
    where = (await read(served, form, "stderr")).decode().strip()
    assert where.startswith(str(served.platform.folder_of(form.job_id)))
    assert ("stdout", 4) in await served.service.list_job_files(form)
    served.gate.touch()
    await finish(served, recorder, form)
    assert await read(served, form, "stdout") == b"a, b"
    assert ("output/ls", 5) in await served.service.list_job_files(form)
    with pytest.raises(FileNotFoundError):
        await read(served, form, "missing")


async def test_code_that_cannot_be_sent_is_refused(harness: FilesHarness) -> None:
    (harness.directory / "code" / "data").symlink_to("/etc")
    with pytest.raises(SubmissionRefused, match="the link data of the trial code leads out of"):
        await harness.service.submit_trial_job(harness.form_of("true"))


@pytest.mark.slow
async def test_checkpoints_of_a_job_that_is_over_are_here_and_the_next_job_continues_from_one(
    served: FilesHarness,
    recorder: Recorder,
) -> None:
    first = served.job(saves=2, size=LARGE)
    await run_job(served, recorder, first)
    offers = [offer(recorder, first, number) for number in (2, 1)]
    for each in offers:
        assert Path(each.path, "weights").stat().st_size == LARGE
    second = served.job(number=2, offers=offers)
    start = await run_job(served, recorder, second)
    assert start == JobStart(offers[0], "from checkpoint 2 of job 1, sent from the manager's machine")
    assert await read(served, second, "stdout") == b"begins at 2\n"
    changed = [change.status for change in recorder.of(second.job_id) if change.start is not None]
    assert changed[0] is TrialJobStatus.SUBMITTED  # before the first metric
    assert list((served.trials_directory.parent / "checkpoint-archives").iterdir()) == []


@pytest.mark.slow
async def test_a_checkpoint_that_is_damaged_or_lost_is_passed_over(served: FilesHarness, recorder: Recorder) -> None:
    first = served.job(saves=3)
    await run_job(served, recorder, first)
    offers = [offer(recorder, first, number) for number in (3, 2, 1)]
    shutil.rmtree(offers[0].path)
    Path(offers[1].path, "weights").write_bytes(bytes([1]) * SMALL)
    second = served.job(number=2, offers=offers)
    start = await run_job(served, recorder, second)
    assert await read(served, second, "stdout") == b"begins at 1\n"
    assert start is not None
    assert start.checkpoint == offers[2]
    assert start.reason == (
        "from checkpoint 1 of job 1, sent from the manager's machine; checkpoint 3 was passed over: it was lost with "
        "its machine, before it was copied to the manager's; checkpoint 2 was passed over: weights is damaged: its "
        "content is not what was saved"
    )


@pytest.mark.slow
async def test_a_checkpoint_of_a_running_job_is_copied_once_and_deleted_everywhere(
    served: FilesHarness, recorder: Recorder
) -> None:
    form = served.job(saves=2, size=LARGE, waits=True)
    await begin(served, recorder, form, 2)
    for _ in range(2):
        await served.service.copy_checkpoint(form, "output/checkpoints/2")
    copy = Path(form.directory, "output/checkpoints/2")
    assert (copy / "step").read_text() == "2"
    assert not copy.with_name("1").exists()
    for _ in range(2):
        await served.service.delete_checkpoint(form, "output/checkpoints/2")
    assert not copy.exists()
    assert not served.pod_path(form, "output/checkpoints/2").exists()
    served.gate.touch()
    await recorder.end_of(form.job_id)
    await served.service.delete_checkpoint(form, "output/checkpoints/1")  # while it is being collected
    assert await served.leftovers() == []
    assert [path.name for path in copy.parent.glob("[0-9]")] == []
    with pytest.raises(TrainingServiceError, match="was lost with its machine before it was copied"):
        await served.service.copy_checkpoint(form, "output/checkpoints/2")


@pytest.mark.slow
async def test_a_clone_continues_from_the_checkpoint_of_a_job_that_runs(
    served: FilesHarness, recorder: Recorder
) -> None:
    donor = served.job("donor", saves=2, size=LARGE, waits=True)
    await begin(served, recorder, donor, 2)
    clone = served.job("clone", offers=[offer(recorder, donor, 2)])
    await served.service.submit_trial_job(clone)
    await recorder.end_of(clone.job_id)
    served.gate.touch()
    await finish(served, recorder, donor)
    assert await read(served, clone, "stdout") == b"begins at 2\n"


@pytest.mark.slow
async def test_what_is_larger_than_the_limits_is_said_and_lost(harness: FilesHarness) -> None:
    harness.checkpoint_limit = LIMIT
    await harness.restart()
    await harness.reattached()
    recorder = Recorder()
    recorder.listen(harness.service)
    form = harness.job(size=LARGE, waits=True)
    form = replace(form, command=f"head -c {LARGE} /dev/zero > $PROCTOR_OUTPUT_DIR/large; {form.command}")
    async with serving(harness.service):
        await begin(harness, recorder, form)
        with pytest.raises(
            TrainingServiceError, match=r"output/checkpoints/1 of job first\.1 has 300 kB; no more than 200 kB are"
        ):
            await harness.service.copy_checkpoint(form, "output/checkpoints/1")
        harness.gate.touch()
        await finish(harness, recorder, form)
        assert ("output/large", LARGE) in await harness.service.list_job_files(form)
        with pytest.raises(ServiceUnavailable, match=r"output/large was on the machine of job first\.1, which is gone"):
            await read(harness, form, "output/large")


@pytest.mark.slow
async def test_a_pod_that_does_not_answer_is_removed_all_the_same(
    harness: FilesHarness, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("COLLECT_SECONDS", "LIST_SECONDS"):
        monkeypatch.setattr(departures, limit, 0.5)
    stopped = []

    async def stop_keeper_process(job_id: str) -> None:
        pid = harness.platform.keeper_pid(job_id)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    collect = harness.service._departures.collect

    async def collect_from_silence(job_id: str) -> None:
        await stop_keeper_process(job_id)
        await collect(job_id)

    monkeypatch.setattr(harness.service._departures, "collect", collect_from_silence)
    form = harness.form_of("echo gone")
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await finish(harness, recorder, form)
        assert stopped
        assert await harness.service.list_job_files(form) == []


@pytest.mark.slow
async def test_a_checkpoint_is_fetched_although_small_files_and_a_newer_one_cannot_be(
    served: FilesHarness, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = served.service._departures._collector
    copy = collector.copy

    async def refuse(*_: object, **__: object) -> None:
        raise OSError("not now")

    async def copy_but_the_second(keeper_id: str, folder: str, target: Path) -> None:
        if folder.endswith("/2"):
            raise FileNotFoundError("it was just deleted")
        await copy(keeper_id, folder, target)

    monkeypatch.setattr(collector, "collect", refuse)
    monkeypatch.setattr(collector, "copy", copy_but_the_second)
    form = served.job(saves=2, size=LARGE)
    await served.service.submit_trial_job(form)
    await finish(served, recorder, form)
    there = {path.split("/")[2] for path, _ in await served.service.list_job_files(form) if "checkpoints" in path}
    assert there == {"1"}


@pytest.mark.slow
async def test_a_manager_that_finds_a_pod_of_a_job_that_is_over_collects_its_files_first(
    harness: FilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Recorder()
    before.listen(harness.service)

    async def never(job_id: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(harness.service._departures, "collect", never)
    form = harness.job(saves=2, size=LARGE)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await before.end_of(form.job_id)
    await harness.restart()
    await harness.service.reattach([], [form.job_id])
    await harness.reattached()
    after = Recorder()
    after.listen(harness.service)
    async with serving(harness.service):
        second = harness.job(number=2, offers=[offer(before, form, 2)])
        await harness.service.submit_trial_job(second)  # waits for the files of the first
        await after.end_of(second.job_id)
        assert await harness.leftovers() == []
        assert await read(harness, form, "stdout") == b"begins at 0\n"
        assert await read(harness, second, "stdout") == b"begins at 2\n"


@pytest.mark.slow
async def test_a_clean_up_collects_the_files_of_what_it_stops(harness: FilesHarness, recorder: Recorder) -> None:
    form = harness.job(size=LARGE, waits=True)
    async with serving(harness.service):
        await begin(harness, recorder, form)
    await harness.service.clean_up()
    assert await harness.leftovers() == []
    assert await read(harness, form, "stdout") == b"begins at 0\n"
    assert Path(form.directory, "output/checkpoints/1/weights").stat().st_size == LARGE


async def test_another_experiment_leaves_pods_alone_whose_files_are_not_collected_yet(harness: FilesHarness) -> None:
    harness.platform.hold("later")
    form, recorder = harness.form_of("true"), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await recorder.waiting_of(form.job_id)
    await harness.restart()
    harness.hub.hold(harness.experiment_id)  # it is not loaded, or still to be cleaned up after
    context = ServiceContext("another1", harness.directory / "other", harness.pool, harness.hub, {})
    other = ProcessService(context, harness.platform)
    await harness.reattached()
    async with serving(other):
        await other._departures.are_known.wait()
        assert [seen.job_id for seen in harness.platform.look()] == [form.job_id]
    harness.hub.release(harness.experiment_id)
    async with serving(other):
        assert await harness.leftovers() == []


@pytest.mark.slow
async def test_what_a_trial_saves_when_its_pod_is_evicted_is_fetched_before_the_pod_ends(
    served: FilesHarness, recorder: Recorder
) -> None:
    form = served.job(saves=1, size=LARGE, waits=True)
    script = served.directory / "code" / "trial.py"
    saving = TRIAL.replace(
        "    time.sleep(0.02)\n", "    time.sleep(0.02)\n    if proctor.should_stop():\n        break\n"
    )
    last = '\nimport os; os.mkdir("last"); open("last/step", "w").write("7"); proctor.report(7.0, checkpoint="last")\n'
    script.write_text(saving + last)
    await begin(served, recorder, form)
    pid = served.platform.keeper_pid(form.job_id)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    assert (await finish(served, recorder, form)).reason is EndReason.PREEMPTED
    second = served.job(number=2, offers=[offer(recorder, form, 2)])
    await run_job(served, recorder, second)
    assert await read(served, second, "stdout") == b"begins at 7\n"


@pytest.mark.slow
async def test_checkpoints_in_a_mounted_folder_are_verified_there_and_not_copied(
    served: FilesHarness, recorder: Recorder
) -> None:
    mounted = served.directory / "claim"
    first = served.job(size=LARGE)
    storage = mounted / "checkpoints" / served.experiment_id / "first"
    first = replace(first, environment={ENV_CHECKPOINT_STORAGE: f"{storage}/1"})
    await served.service.submit_trial_job(first)
    clause = "waiting: trials on platform processes cannot store checkpoints: there is no folder"
    await recorder.until(lambda: any(clause in change.detail for change in recorder.of(first.job_id)))
    (mounted / "checkpoints").mkdir(parents=True)
    assert (await finish(served, recorder, first)).reason is EndReason.EXITED_OK
    stored = storage / "1" / "1"
    assert (stored / "step").read_text() == "1"
    assert not Path(first.directory, "output/checkpoints").exists()
    records = [json.loads(line) for line in recorder.journals[first.job_id].splitlines()]
    manifest = next(record["manifest"] for record in records if record["kind"] == "checkpoint")
    offered = CheckpointOffer(first.job_id, str(stored), 1, manifest=manifest)
    second = served.job(number=2, offers=[offered], waits=True)
    second = replace(second, environment={ENV_CHECKPOINT_STORAGE: f"{storage}/2"})
    await served.service.submit_trial_job(second)
    await recorder.start_of(second.job_id)
    start = next(change.start for change in recorder.of(second.job_id) if change.start is not None)
    assert start.reason == "from checkpoint 1 of job 1, in the folder that is mounted on its machine"
    with pytest.raises(TrainingServiceError, match="is running and continues from"):
        await served.service.delete_checkpoint(first, str(stored))
    await recorder.until(lambda: registered(recorder, second) == 1)
    await served.service.delete_checkpoint(first, str(storage / "2" / "1"))  # by the keeper of another job
    assert not (storage / "2" / "1").exists()
    served.gate.touch()
    await recorder.end_of(second.job_id)
    assert await read(served, second, "stdout") == b"begins at 1\n"


@pytest.mark.slow
async def test_a_job_to_whose_machine_nothing_can_be_brought_waits_and_is_given_back(
    served: FilesHarness, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(staging, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("proctor.training_services.files.code.hash_file", lambda path: "0" * 64)
    form = served.form_of("true")
    await served.service.submit_trial_job(form)
    exit = await finish(served, recorder, form)
    assert exit.reason is EndReason.INFRASTRUCTURE
    assert "its machine cannot be made ready: trial job first.1: the upload" in exit.detail
    assert "was damaged in transit" in exit.detail
    waiting = [change.detail for change in recorder.of(form.job_id) if "tried again in" in change.detail]
    assert len(waiting) == staging.ATTEMPTS - 1
