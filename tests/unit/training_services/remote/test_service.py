"""The remote service between the engine's listeners and machines that are played here."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.remote_nodes import FakeKeeper, FakeProvider

from proctor.sdk.checkpoints.manifest import verify_checkpoint
from proctor.sdk.checkpoints.saving import save_checkpoint
from proctor.training_services.base import CheckpointOffer, EndReason, NodePlacement, TrialJobForm, TrialJobStatus
from proctor.training_services.capacity import GpuRules, Strategy
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.files.collection import CollectionNote
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.registry import ServiceContext
from proctor.training_services.remote import staging
from proctor.training_services.remote.files import collection
from proctor.training_services.remote.service import RemoteTrainingService
from proctor.training_services.ssh.errors import NoRoom, RemoteError
from proctor.training_services.testing import Recorder, serving
from proctor.trial_keeper.protocol import Device, GpuSlot, JobReport, Launch

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "platform": "remote",
    "collect_limit_mb": 1,
    "placement": "pack",
    "machine_list": [
        {"host": "alpha", "user": "bob", "max_trial_number_per_gpu": 2, "python_path": "/opt/python/bin"},
        {"host": "beta", "gpu_indices": [0], "use_active_gpu": True},
    ],
}


class Stage:
    """One experiment on the machines alpha and beta."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.directory = folder / "home" / "experiments" / "e1"
        self.code.mkdir()
        (self.code / "trial.py").write_text("print(1)\n")
        self.settings = dict(SETTINGS)
        self.open()
        self.recorder = Recorder()
        self.recorder.listen(self.service)

    def open(self) -> None:
        """A manager's pool, hub and service; a second time they know nothing."""
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, heartbeat_seconds=60.0)
        self.provider = FakeProvider(self.hub, self.pool)
        self.alpha = self.provider.add("alpha", self.folder / "alpha")
        self.beta = self.provider.add("beta", self.folder / "beta")
        self.service = self.make()

    def make(self, **options: Any) -> RemoteTrainingService:
        secrets = {"training_service.machine_list.0.password": "swordfish"}
        context = ServiceContext("e1", self.directory, self.pool, self.hub, self.settings, secrets=secrets)
        return RemoteTrainingService(context, provider=self.provider, clean_up_seconds=20.0, **options)

    def form(self, number: int = 1, node_id: str = "alpha", **more: Any) -> TrialJobForm:
        return TrialJobForm(
            job_id=f"t.{number}",
            token=f"token {number}",
            experiment_id="e1",
            trial_id="t",
            sequence_id=4,
            number=number,
            parameter_id=0,
            parameter_file="{}",
            command="python trial.py",
            code_directory=str(self.code),
            directory=str(self.directory / "trials" / "4-t" / "jobs" / str(number)),
            placement=NodePlacement(node_id),
            **more,
        )

    def checkpoint(self, number: int = 1, name: str = "3") -> str:
        """Where the manager would have a checkpoint of a job."""
        return f"{self.directory}/trials/4-t/jobs/{number}/output/checkpoints/{name}"

    async def launch(self, form: TrialJobForm | None = None) -> Launch:
        """A job is submitted, and its launch has come to its node."""
        form = form or self.form()
        assert form.placement is not None
        await self.service.submit_trial_job(form)
        return await (self.alpha if form.placement.node_id == "alpha" else self.beta).launched(form.job_id)

    async def run_job(self, form: TrialJobForm, keeper: FakeKeeper, **files: str) -> Path:
        """A job from its submission to its end; it writes files. Returns its directory on the machine."""
        folder = keeper.path(await self.launch(form))
        for name, text in files.items():
            place = folder / name.replace("__", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        await keeper.start(form.job_id)
        await keeper.end(form.job_id)
        await self.recorder.end_of(form.job_id)
        return folder

    async def collected(self, number: int = 1) -> CollectionNote:
        """Wait until a job was collected."""
        directory = Path(self.form(number).directory)
        async with asyncio.timeout(60):
            while CollectionNote.read(directory).left is None:  # noqa: ASYNC110 - a file that appears
                await asyncio.sleep(0.02)
        return CollectionNote.read(directory)

    async def reattach(self, *forms: TrialJobForm) -> None:
        """Another manager takes over; it has these jobs in its database."""
        self.hub.close()
        self.open()
        self.recorder.listen(self.service)
        await self.service.reattach(forms, [])

    async def end_of(self, job_id: str = "t.1") -> tuple[EndReason, str]:
        end = await self.recorder.end_of(job_id)
        assert end.exit is not None
        return end.exit.reason, end.detail

    def details(self, job_id: str) -> list[str]:
        return [change.detail for change in self.recorder.of(job_id) if change.detail]

    async def until_reported(self, job_id: str, words: str) -> None:
        await self.recorder.until(lambda: any(words in detail for detail in self.details(job_id)))


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str) -> AsyncIterator[Stage]:
    monkeypatch.setattr(collection, "ATTEMPT_PAUSE_SECONDS", 0.01)
    stage = Stage(tmp_path)
    await stage.hub.mark_reattached()
    yield stage
    stage.hub.close()


@asynccontextmanager
async def playing_keeper(keeper: FakeKeeper, *reports: JobReport) -> AsyncIterator[None]:
    """A keeper runs."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.serve(*reports))
        try:
            yield
        finally:
            task.cancel()


@asynccontextmanager
async def playing(stage: Stage, *keepers: FakeKeeper, reports: tuple[JobReport, ...] = ()) -> AsyncIterator[None]:
    """The service runs, and so do keepers."""
    async with serving(stage.service), AsyncExitStack() as stack:
        await asyncio.sleep(0)  # the machines are claimed
        for keeper in keepers:
            await stack.enter_async_context(playing_keeper(keeper, *reports))
        yield


async def test_a_service_that_only_reads_claims_nothing(stage: Stage) -> None:
    assert stage.service.node_ids() == ("alpha", "beta")
    with pytest.raises(ServiceUnavailable, match="node alpha is not known to the manager"):
        await stage.service.list_job_files(stage.form())
    assert stage.provider.claims == []


async def test_machines_are_claimed_with_the_secrets_of_the_experiment_and_released_at_the_end(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        await stage.run_job(stage.form(), stage.alpha)
        assert stage.provider.claims == ["e1"]
        assert stage.provider.secrets_files == [stage.directory / "secrets.json"]
        stage.pool.set_status("alpha", NodeStatus.SILENT, "no report from its keeper for 15 s")
    await stage.service.clean_up()
    assert stage.provider.claims == []


async def test_a_job_is_launched_below_the_keepers_directory_with_its_code(stage: Stage) -> None:
    form = stage.form(lease_seconds=30.0, max_duration_seconds=5.0, gpu_number=0)
    async with playing(stage, stage.alpha):
        launch = await stage.launch(form)
    assert launch.directory == "experiments/e1/trials/4-t/jobs/1"
    assert (stage.alpha.directory / launch.code_directory / "trial.py").read_text() == "print(1)\n"
    assert launch.environment_file is None
    assert launch.search_path == "/opt/python/bin"
    assert (launch.lease_seconds, launch.max_duration_seconds, launch.gpus) == (30.0, 5.0, [])
    assert launch.max_trials_per_gpu == 2
    assert launch.platform == "remote"
    assert launch.holder.startswith("user ")
    assert launch.holder.endswith(f":{stage.folder}/home, experiment e1, trial 4")
    assert launch.resume_checkpoint is None


async def test_code_that_lies_on_the_machines_is_not_copied(stage: Stage) -> None:
    stage.settings["code"] = {"path_on_node": "/srv/code"}
    stage.service = stage.make()
    async with playing(stage, stage.alpha):
        launch = await stage.launch()
    assert launch.code_directory == "/srv/code"
    assert stage.provider.machines["alpha"].brought == []


async def test_the_code_is_copied_once_for_many_jobs_and_all_are_told_how_far_it_is(stage: Stage) -> None:
    machine = stage.provider.machines["alpha"]
    machine.gate.clear()
    async with playing(stage, stage.alpha):
        for number in (1, 2, 3):
            await stage.service.submit_trial_job(stage.form(number))
        async with asyncio.timeout(60):
            while machine.progress is None:  # noqa: ASYNC110 - set by a fake
                await asyncio.sleep(0.01)
        machine.progress(41_000_000, 120_000_000)
        for number in (1, 2, 3):
            await stage.until_reported(f"t.{number}", "waiting: the code (120 MB) is being copied to alpha, 34 %")
        assert stage.alpha.launches == {}
        machine.gate.set()
        for number in (1, 2, 3):
            await stage.alpha.launched(f"t.{number}")
    assert len(machine.brought) == 1


async def test_code_that_someone_has_deleted_is_copied_again_for_the_next_job(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        launch = await stage.launch()
        shutil.rmtree(stage.alpha.directory / launch.code_directory)
        await stage.alpha.end("t.1", EndReason.LAUNCH_FAILED)
        await stage.end_of()
        launch = await stage.launch(stage.form(2))
        assert (stage.alpha.directory / launch.code_directory / "trial.py").exists()


async def test_changed_code_is_copied_again_and_the_old_archive_removed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.training_services.files.code.POLL_INTERVAL_SECONDS", 0.0)
    async with playing(stage, stage.alpha):
        await stage.run_job(stage.form(1), stage.alpha)
        (stage.code / "trial.py").write_text("print(2)\n")
        await stage.run_job(stage.form(2), stage.alpha)
    first, second = (stage.alpha.launches[job].code_directory for job in ("t.1", "t.2"))
    assert first != second
    assert [path.name for path in (stage.directory / "code-archives").iterdir()] == [f"{second[5:]}.tar.gz"]


async def test_an_experiment_inside_its_own_code_is_not_code(stage: Stage) -> None:
    stage.directory = stage.code / "work" / "e1"
    (stage.directory / "trials").mkdir(parents=True)
    stage.service = stage.make()
    stage.recorder.listen(stage.service)
    async with playing(stage, stage.alpha):
        launch = await stage.launch()
    found = {path.name for path in (stage.alpha.directory / launch.code_directory).rglob("*")}
    assert found == {"trial.py"}


async def test_what_can_never_run_is_refused_with_a_sentence(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        with pytest.raises(SubmissionRefused, match="trialCommand is empty"):
            await stage.service.submit_trial_job(replace(stage.form(), command=" "))
        with pytest.raises(SubmissionRefused, match="it does not exist"):
            await stage.service.submit_trial_job(replace(stage.form(), code_directory="/nowhere/at/all"))
        with pytest.raises(SubmissionRefused, match="needs 2 GPUs and its placement names 0"):
            await stage.service.submit_trial_job(replace(stage.form(), gpu_number=2))
        (stage.code / "data").symlink_to("/etc")
        stage.service = stage.make()
        with pytest.raises(SubmissionRefused, match="the link data of the trial code leads out"):
            await stage.service.submit_trial_job(stage.form())
        assert await stage.service.list_trial_jobs() == []


async def test_a_job_waits_with_the_reason_while_its_machine_is_away(stage: Stage) -> None:
    async with playing(stage):
        await stage.service.submit_trial_job(stage.form())
        await stage.until_reported("t.1", "waiting: node alpha is connecting: it is being connected")
        stage.pool.set_status("alpha", NodeStatus.FAILED, "login as bob was refused")
        await stage.until_reported("t.1", "waiting: node alpha is failed: login as bob was refused")
        async with playing_keeper(stage.alpha):
            await stage.alpha.launched("t.1")


async def test_a_machine_that_fails_is_tried_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FIRST_PAUSE_SECONDS", 0.01)
    stage.provider.machines["alpha"].failures = [RemoteError("it is broken"), OSError(5, "Input/output error")]
    async with playing(stage, stage.alpha):
        await stage.service.submit_trial_job(stage.form())
        await stage.until_reported("t.1", "node alpha cannot be made ready: it is broken; tried again in")
        await stage.alpha.launched("t.1")


async def test_a_machine_that_fails_time_and_again_loses_the_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "FIRST_PAUSE_SECONDS", 0.0)
    stage.provider.machines["alpha"].failures = [RemoteError("it is broken") for _ in range(100)]
    async with playing(stage, stage.alpha):
        await stage.service.submit_trial_job(stage.form())
        end = await stage.end_of()
    assert end == (EndReason.INFRASTRUCTURE, "node alpha cannot be made ready: it is broken")
    assert stage.alpha.launches == {}


async def test_a_machine_without_room_gives_the_job_back_and_gets_no_more_until_it_has_room(stage: Stage) -> None:
    full = "its disk is full (uploads/x could not be written, 3 MiB free); make room there"
    stage.provider.machines["alpha"].failures = [NoRoom(full)]
    async with playing(stage, stage.alpha):
        await stage.pool.wait_connected("alpha")
        stage.pool.update("alpha", 1.0, disk_free_mb=3)
        await stage.service.submit_trial_job(stage.form())
        assert await stage.end_of() == (EndReason.NO_ROOM, f"node alpha: {full}")
        assert stage.pool.obstacle("alpha") == f"node alpha takes no new jobs: {full}"
        assert [node.ready for node in stage.pool.capacity(["alpha"])] == [False]
        stage.pool.update("alpha", 2.0, disk_free_mb=3)
        assert stage.pool.obstacle("alpha")
        stage.pool.update("alpha", 3.0, disk_free_mb=900)
        assert stage.pool.obstacle("alpha") == ""
        await stage.launch(stage.form(2))
    assert list(stage.alpha.launches) == ["t.2"]


async def test_while_the_managers_own_disk_is_full_no_machine_is_to_blame(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FIRST_PAUSE_SECONDS", 0.0)
    full = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) for _ in range(2 * staging.ATTEMPTS)]
    stage.provider.machines["alpha"].failures = full
    async with playing(stage, stage.alpha):
        await stage.service.submit_trial_job(stage.form())
        await stage.until_reported("t.1", "No space left on device; tried again in")
        await stage.alpha.launched("t.1")


async def test_a_job_that_is_stopped_while_its_code_is_copied_is_never_launched(stage: Stage) -> None:
    machine = stage.provider.machines["alpha"]
    machine.gate.clear()
    async with playing(stage, stage.alpha):
        await stage.service.submit_trial_job(stage.form(1))
        await stage.service.submit_trial_job(stage.form(2))
        await stage.service.cancel_trial_job("t.1")
        assert (await stage.end_of("t.1"))[0] is EndReason.CANCELED
        machine.gate.set()
        await stage.alpha.launched("t.2")
    assert list(stage.alpha.launches) == ["t.2"]


async def test_gpu_rules_are_each_machines_and_change_for_all(stage: Stage) -> None:
    service = stage.service
    assert service.placement_strategy() is Strategy.PACK
    assert service.gpu_rules("alpha") == GpuRules(max_trials_per_gpu=2)
    assert service.gpu_rules("beta") == GpuRules(use_active_gpu=True, gpu_indices=(0,))
    assert service.gpu_rules("gone") == GpuRules()
    assert await service.get_cluster_metadata("max_trial_number_per_gpu") == {"alpha": 2, "beta": 1}
    await service.set_cluster_metadata("max_trial_number_per_gpu", 3)
    assert await service.get_cluster_metadata("max_trial_number_per_gpu") == 3
    assert service.gpu_rules("beta").max_trials_per_gpu == 3
    with pytest.raises(KeyError):
        await service.set_cluster_metadata("machines", [])


async def test_the_machines_are_shown_without_their_secrets(stage: Stage) -> None:
    stage.provider.claim("e1", stage.settings, {})
    stage.pool.connect("alpha", [Device(0, "GPU-a", "H100", 80000, 10, 3)], driver_note="", hostname="alpha",
                       version="1", seen_at=1.0)  # fmt: skip
    stage.pool.reserve("t.1", "token", "trial 4", NodePlacement("alpha", (GpuSlot("GPU-a", 0),)))
    alpha, beta = await stage.service.get_cluster_metadata("machines")
    assert (alpha["ip"], alpha["username"], alpha["password"]) == ("alpha", "bob", "<redacted>")
    assert alpha["reservations"] == {0: ["t.1"]}
    assert alpha["gpu_summary"][0]["uuid"] == "GPU-a"
    assert (beta["password"], beta["gpu_summary"], beta["reservations"]) == (None, None, {})
    assert "swordfish" not in str([alpha, beta])


# ---- files


async def test_small_files_are_collected_when_a_job_has_ended_and_large_ones_at_the_end(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        form = stage.form()
        folder = await stage.run_job(form, stage.alpha, stdout="hello", output__model="x" * 2_000_000)
        note = await stage.collected()
        assert note.left == (("output/model", 2_000_000),)
        assert (Path(form.directory) / "stdout").read_text() == "hello"
        assert await stage.service.list_job_files(form) == [("output/model", 2_000_000), ("stdout", 5)]
        assert await stage.service.read_job_file(form, "output/model", -3, 10) == b"xxx"  # from the machine
    async with playing_keeper(stage.alpha), asyncio.timeout(60):
        await stage.pool.wait_connected("alpha")
        await stage.service.clean_up()
    assert (Path(form.directory) / "output" / "model").stat().st_size == 2_000_000
    assert CollectionNote.read(Path(form.directory)).left == ()
    assert not folder.exists()
    assert not (stage.alpha.directory / "experiments" / "e1").exists()
    assert list(stage.provider.uncollected) == ["beta"]


async def test_files_of_a_machine_that_is_away_when_the_experiment_is_let_go_stay_there(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        folder = await stage.run_job(stage.form(), stage.alpha, output__model="x" * 2_000_000)
        await stage.collected()
        stage.pool.set_status("alpha", NodeStatus.SILENT, "no report from its keeper for 15 s")
    await stage.service.clean_up()
    assert (folder / "output" / "model").exists()
    assert stage.provider.claims == []
    assert list(stage.provider.uncollected) == ["alpha", "beta"]
    assert "node alpha is silent" in stage.provider.uncollected["alpha"]


async def test_a_finished_jobs_collected_files_are_read_while_its_machine_is_gone(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        form = stage.form()
        await stage.run_job(form, stage.alpha, stdout="hello", output__model="x" * 2_000_000)
        await stage.collected()
        stage.pool.set_status("alpha", NodeStatus.LOST, "its trials were abandoned")
        assert await stage.service.read_job_file(form, "stdout", 0, 100) == b"hello"
        with pytest.raises(FileNotFoundError):
            await stage.service.read_job_file(form, "no such file", 0, 100)
        with pytest.raises(ServiceUnavailable, match=r"output/model is on node alpha, .* alpha is lost.* 1 files of"):
            await stage.service.read_job_file(form, "output/model", 0, 100)


async def test_a_running_jobs_files_are_read_on_its_machine(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        form = stage.form()
        folder = stage.alpha.path(await stage.launch(form))
        await stage.alpha.start("t.1")
        (folder / "stdout").write_text("one")
        assert await stage.service.read_job_file(form, "stdout", 1, 100) == b"ne"
        (folder / "stdout").write_text("one two")
        assert await stage.service.list_job_files(form) == [("stdout", 7)]
        stage.pool.set_status("alpha", NodeStatus.SILENT, "no report from its keeper for 15 s")
        with pytest.raises(ServiceUnavailable, match=r"node alpha is silent.*no file of the job was collected yet"):
            await stage.service.list_job_files(form)


# ---- checkpoints


def save(folder: Path, name: str = "3", text: str = "weights") -> None:
    place = folder / "output" / "checkpoints" / name
    place.mkdir(parents=True)
    (place / "model").write_text(text)


def offer(stage: Stage, name: str = "3", manifest: str | None = None) -> CheckpointOffer:
    """A checkpoint of job 1, which ran on alpha."""
    return CheckpointOffer("t.1", stage.checkpoint(name=name), 10 * int(name), "alpha", manifest)


async def begin_again(
    stage: Stage, keeper: FakeKeeper, node_id: str, *offers: CheckpointOffer
) -> tuple[str | None, str, int | None]:
    """Job 2 on a node, to continue from checkpoints of job 1: the path it is given, its reason, and the place in the
    curve from which it continues."""
    form = stage.form(2, node_id, checkpoints=offers or (offer(stage),))
    await stage.service.submit_trial_job(form)
    launch = await keeper.launched("t.2")
    (before,) = [change for change in stage.recorder.of("t.2") if change.start]
    assert before.status is TrialJobStatus.SUBMITTED  # known before anything is launched
    await keeper.start("t.2")
    await stage.recorder.start_of("t.2")
    start = stage.recorder.of("t.2")[-1].start
    assert start is not None
    assert start == before.start
    return launch.resume_checkpoint, start.reason, start.checkpoint.sequence if start.checkpoint else None


async def test_a_checkpoint_on_the_same_machine_is_used_where_it_lies(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        save(await stage.run_job(stage.form(), stage.alpha))
        begun = await begin_again(stage, stage.alpha, "alpha")
    assert begun == (
        "experiments/e1/trials/4-t/jobs/1/output/checkpoints/3",
        "from checkpoint 3 of job 1, which is on this node",
        30,
    )


async def test_a_collected_checkpoint_is_copied_to_another_machine(stage: Stage) -> None:
    async with playing(stage, stage.alpha, stage.beta):
        await stage.run_job(stage.form(), stage.alpha, output__checkpoints__3__model="weights")
        await stage.collected()
        stage.pool.set_status("alpha", NodeStatus.LOST, "gone")
        path, reason, sequence = await begin_again(stage, stage.beta, "beta")
    assert path == "experiments/e1/checkpoints/trials/4-t/jobs/1/output/checkpoints/3"
    assert (stage.beta.directory / path / "model").read_text() == "weights"
    assert (reason, sequence) == ("from checkpoint 3 of job 1, copied from the manager's machine", 30)


async def test_a_checkpoint_that_is_too_large_to_be_collected_is_fetched_when_it_is_needed(stage: Stage) -> None:
    async with playing(stage, stage.alpha, stage.beta):
        await stage.run_job(stage.form(), stage.alpha, output__checkpoints__3__model="x" * 2_000_000)
        await stage.collected()
        path, reason, sequence = await begin_again(stage, stage.beta, "beta")
    assert path is not None
    assert (stage.beta.directory / path / "model").stat().st_size == 2_000_000
    assert (reason, sequence) == ("from checkpoint 3 of job 1, fetched from node alpha", 30)


async def test_half_a_checkpoint_is_never_used(stage: Stage) -> None:
    async with playing(stage, stage.alpha, stage.beta):
        files = {"output__checkpoints__3__model": "x" * 2_000_000, "output__checkpoints__3__step": "3"}
        await stage.run_job(stage.form(), stage.alpha, **files)
        await stage.collected()
        assert Path(stage.checkpoint(), "step").exists()
        stage.pool.set_status("alpha", NodeStatus.LOST, "its trials were abandoned")
        begun = await begin_again(stage, stage.beta, "beta")
    reason = (
        "from the start: checkpoint 3 of job 1 was passed over: it was saved on a machine that cannot be read: "
        "node alpha is lost: its trials were abandoned"
    )
    assert begun == (None, reason, None)


async def test_a_checkpoint_in_a_home_that_both_machines_share_is_read_there(stage: Stage) -> None:
    stage.beta = stage.provider.add("beta", stage.folder / "alpha")
    async with playing(stage, stage.alpha, stage.beta):
        await stage.run_job(stage.form(), stage.alpha, output__checkpoints__3__model="weights")
        stage.pool.set_status("alpha", NodeStatus.LOST, "gone")
        path, reason, _ = await begin_again(stage, stage.beta, "beta")
    assert path == "../alpha/experiments/e1/trials/4-t/jobs/1/output/checkpoints/3"
    assert reason == "from checkpoint 3 of job 1 of node alpha, whose home this node shares"


def store(stage: Stage, folder: Path) -> tuple[CheckpointOffer, ...]:
    """Have job 1 save three checkpoints; newest first."""
    work = stage.folder / "work"
    offers = []
    for step in (1, 2, 3):
        work.mkdir(exist_ok=True)
        (work / "model").write_text(f"weights {step}")
        stored = save_checkpoint(str(work), str(folder))
        assert stored is not None
        offers.append(offer(stage, str(step), stored.manifest))
    return tuple(reversed(offers))


async def test_a_torn_checkpoint_is_passed_over_for_the_one_before(stage: Stage) -> None:
    async with playing(stage, stage.alpha):
        folder = await stage.run_job(stage.form(), stage.alpha)
        offers = store(stage, folder)
        (folder / "output" / "checkpoints" / "3" / "model").write_text("w")
        begun = await begin_again(stage, stage.alpha, "alpha", *offers)
    assert begun == (
        "experiments/e1/trials/4-t/jobs/1/output/checkpoints/2",
        "from checkpoint 2 of job 1, which is on this node; checkpoint 3 was passed over: model has 1 bytes, 9 "
        "expected",
        20,
    )


async def test_where_no_checkpoint_is_whole_a_job_begins_from_the_start_and_says_why(stage: Stage) -> None:
    async with playing(stage, stage.alpha, stage.beta):
        folder = await stage.run_job(stage.form(), stage.alpha)
        offers = store(stage, folder)
        places = folder / "output" / "checkpoints"
        (places / "3" / "model").write_text("WEIGHTS 3")
        (places / "2" / "model").unlink()
        shutil.rmtree(places / "1")
        begun = await begin_again(stage, stage.beta, "beta", *offers)
    reason = (
        "from the start: none of 3 checkpoints is whole; "
        "checkpoint 3 of job 1 was passed over: model is damaged: its content is not what was saved; "
        "checkpoint 2 of job 1 was passed over: model is missing; "
        "checkpoint 1 of job 1 was passed over: its folder is gone"
    )
    assert begun == (None, reason, None)


async def test_a_copy_that_was_damaged_here_is_not_sent_to_another_machine(stage: Stage) -> None:
    async with playing(stage, stage.alpha, stage.beta):
        folder = stage.alpha.path(await stage.launch())
        offers = store(stage, folder)
        await stage.alpha.start("t.1")
        await stage.alpha.end("t.1")
        await stage.recorder.end_of("t.1")
        await stage.collected()
        Path(offers[0].path, "model").write_text("WEIGHTS 3")
        stage.pool.set_status("alpha", NodeStatus.LOST, "gone")
        path, reason, sequence = await begin_again(stage, stage.beta, "beta", *offers)
    assert path == "experiments/e1/checkpoints/trials/4-t/jobs/1/output/checkpoints/2"
    assert verify_checkpoint(str(stage.beta.directory / path), offers[1].manifest) == ""
    assert sequence == 20
    assert reason.startswith("from checkpoint 2 of job 1, copied from the manager's machine; checkpoint 3 was passed")
    assert not any(place.endswith("/3") for place in stage.provider.machines["beta"].brought)


# ---- managers that come back


async def test_after_a_restart_a_job_that_runs_goes_on_and_one_that_never_arrived_is_prepared_and_sent(
    stage: Stage,
) -> None:
    await stage.reattach(stage.form(1), stage.form(2))
    await stage.hub.mark_reattached()
    assert stage.provider.claims == ["e1"]
    async with playing(stage, stage.alpha, reports=(JobReport("t.1", "token 1", 7, 10.0),)):
        await stage.recorder.start_of("t.1")
        launch = await stage.alpha.launched("t.2")
    assert list(stage.alpha.launches) == ["t.2"]
    assert (stage.alpha.directory / launch.code_directory / "trial.py").exists()


async def test_after_a_restart_jobs_that_are_being_stopped_are_stopped_by_their_keeper_or_never_sent(
    stage: Stage,
) -> None:
    await stage.reattach(*map(stage.form, (1, 2, 3)))
    for job_id in ("t.1", "t.2"):  # again, at once: the keeper may not have it yet
        await stage.service.cancel_trial_job(job_id)
    await stage.hub.mark_reattached()
    async with playing(stage):
        await stage.service.cancel_trial_job("t.3")
        async with playing_keeper(stage.alpha, JobReport("t.1", "token 1", 7, 10.0)):
            assert [(await stage.end_of(job_id))[0] for job_id in ("t.2", "t.3")] == [EndReason.CANCELED] * 2
            await stage.alpha.until(lambda: set(stage.alpha.cancels) == {"t.1"})
    assert {change.exit for change in stage.recorder.of("t.1")} == {None}  # it runs; its keeper will report its end
    assert stage.alpha.launches == {}
