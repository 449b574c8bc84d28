"""What "works" means for a training service: a suite that every implementation passes.

Subclass `TrainingServiceContract` in a test module of yours and give it one fixture:

    class TestMyService(TrainingServiceContract):
        @pytest.fixture
        async def harness(self, anyio_backend: str, tmp_path: Path) -> AsyncIterator[ServiceHarness]:
            async with MyHarness(tmp_path).opened() as harness:
                yield harness

The suite asserts no time; what does not happen within `PATIENCE_SECONDS` fails. It needs anyio's pytest plugin with the
asyncio backend. The in-memory service and the steps of its scripts are re-exported here.
"""

import asyncio
from abc import ABC
from dataclasses import replace
from typing import Any

import pytest

from proctor.sdk.protocol import CONTROL_FILE, ENV_JUDGED_RANK, ENV_VERDICT_SECONDS
from proctor.sdk.quick_json import loads
from proctor.training_services.base import (
    EndReason,
    SupportsCheckpointDeletion,
    SupportsEvents,
    SupportsLogs,
    SupportsReattach,
    TrainingService,
    TrialJobStatus,
)
from proctor.training_services.errors import SubmissionRefused, UnknownTrialJob
from proctor.training_services.testing.harness import (
    EXIT_CODE,
    FINAL_VALUE,
    OUTSIDE,
    PATIENCE_SECONDS,
    VALUES,
    Behavior,
    Recorder,
    ServiceHarness,
    serving,
)


@pytest.mark.anyio
class TrainingServiceContract:
    """The suite. A subclass gives the fixture `harness`."""

    async def test_a_job_runs_to_its_end_and_its_metrics_come_before_it(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            detail = await harness.service.submit_trial_job(form)
            assert (detail.id, detail.form) == (form.job_id, form)
            end = await recorder.end_of(form.job_id)
        assert recorder.records(form.job_id) == _all_records()
        assert recorder.statuses(form.job_id) == [TrialJobStatus.RUNNING, TrialJobStatus.ENDED]
        assert end.exit is not None
        assert (end.exit.reason, end.exit.code, end.token) == (EndReason.EXITED_OK, 0, form.token)

    async def test_a_job_that_fails_says_how(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.FAIL), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert (end.exit.reason, end.exit.code) == (EndReason.EXITED_ERROR, EXIT_CODE)

    async def test_submitting_twice_is_submitting_once(self, harness: ServiceHarness) -> None:
        form, other, recorder = harness.form(Behavior.REPORT), harness.form(Behavior.REPORT, "second"), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await harness.service.submit_trial_job(form)
            assert [job.id for job in await harness.service.list_trial_jobs()] == [form.job_id]
            await recorder.end_of(form.job_id)
            await harness.service.submit_trial_job(other)
            await recorder.end_of(other.job_id)
        assert recorder.records(form.job_id) == _all_records()
        assert len({change.time for change in recorder.of(form.job_id) if change.exit}) == 1

    async def test_jobs_are_listed_and_found_by_id(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.HANG), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.start_of(form.job_id)
            detail = await harness.service.get_trial_job(form.job_id)
            assert detail in await harness.service.list_trial_jobs()
            assert detail.status is TrialJobStatus.RUNNING
            assert detail.start_time is not None
            assert detail.start_time.tzinfo is not None
            await harness.service.cancel_trial_job(form.job_id)
            await recorder.end_of(form.job_id)

    async def test_asking_for_an_unknown_job_is_an_error(self, harness: ServiceHarness) -> None:
        form = harness.form(Behavior.HANG)
        with pytest.raises(UnknownTrialJob, match=form.job_id):
            await harness.service.get_trial_job(form.job_id)
        with pytest.raises(UnknownTrialJob, match=form.job_id):
            await harness.service.update_trial_job(form.job_id, form)

    async def test_canceling_stops_a_job_and_may_be_asked_of_anything_again(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.HANG), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.cancel_trial_job("never.1")
            await harness.service.submit_trial_job(form)
            await recorder.start_of(form.job_id)
            await harness.service.cancel_trial_job(form.job_id, is_early_stopped=True)
            await harness.service.cancel_trial_job(form.job_id, is_early_stopped=True)
            end = await recorder.end_of(form.job_id)
            await harness.service.cancel_trial_job(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.CANCELED

    async def test_a_job_that_was_just_submitted_can_be_canceled(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.HANG), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await harness.service.cancel_trial_job(form.job_id)
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.CANCELED

    async def test_what_a_listener_refuses_is_delivered_again_in_order(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.REPORT), Recorder(refusals=2)
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.end_of(form.job_id)
        assert recorder.refused
        assert recorder.records(form.job_id) == _all_records()
        assert recorder.statuses(form.job_id) == [TrialJobStatus.RUNNING, TrialJobStatus.ENDED]

    async def test_a_job_whose_metrics_are_refused_is_stopped_and_forgotten(self, harness: ServiceHarness) -> None:
        refused, other = harness.form(Behavior.HANG), harness.form(Behavior.REPORT, "second")
        recorder = Recorder(fenced={refused.job_id})
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(refused)
            await recorder.until(lambda: bool(recorder.refused))
            await _until_forgotten(harness.service, refused.job_id)
            await harness.service.submit_trial_job(other)
            await recorder.end_of(other.job_id)
            assert await harness.processes() == []
        assert recorder.records(refused.job_id) == []
        assert recorder.records(other.job_id) == _all_records()

    async def test_a_job_that_cannot_start_yet_says_why(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        service = await harness.block()
        recorder.listen(service)
        async with serving(service):
            detail = await service.submit_trial_job(form)
            assert detail.status is TrialJobStatus.SUBMITTED
            waiting = await recorder.waiting_of(form.job_id)
            assert waiting.token == form.token
            assert len(waiting.detail.split()) > 2, "a reason for people, such as 'waiting: 4 of 4 slots are taken'"
            assert recorder.statuses(form.job_id) == []
            await harness.unblock()
            await recorder.end_of(form.job_id)
        assert recorder.records(form.job_id) == _all_records()

    async def test_a_job_that_cannot_start_yet_can_be_canceled(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        service = await harness.block()
        recorder.listen(service)
        async with serving(service):
            await service.submit_trial_job(form)
            await recorder.waiting_of(form.job_id)
            await service.cancel_trial_job(form.job_id)
            await harness.unblock()
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.CANCELED
        assert recorder.statuses(form.job_id) == [TrialJobStatus.ENDED]

    async def test_an_unknown_job_can_be_canceled(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.cancel_trial_job(harness.form(Behavior.HANG, "second").job_id)
            await harness.service.submit_trial_job(form)
            await recorder.end_of(form.job_id)
        assert {change.job_id for change in recorder.changes} == {form.job_id}

    async def test_a_trial_imports_proctor_and_nni_and_reads_its_parameters(self, harness: ServiceHarness) -> None:
        _require_commands(harness)
        parameters = '{"parameter_id":0,"parameter_source":"algorithm","parameters":{"x":0.125},"parameter_index":0}'
        form, recorder = replace(harness.form(Behavior.IMPORT), parameter_file=parameters), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.EXITED_OK, end.exit.detail
        assert recorder.records(form.job_id) == [("intermediate", 0.125), ("final", FINAL_VALUE)]

    async def test_canceling_a_job_ends_processes_in_sessions_of_their_own(self, harness: ServiceHarness) -> None:
        _require_commands(harness)
        form, recorder = harness.form(Behavior.DETACH), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.until(lambda: bool(recorder.journals.get(form.job_id)))
            await harness.service.cancel_trial_job(form.job_id)
            end = await recorder.end_of(form.job_id)
            assert await harness.processes() == []
        assert end.exit is not None
        assert end.exit.reason is EndReason.CANCELED

    async def test_what_a_job_leaves_behind_when_it_exits_is_ended(self, harness: ServiceHarness) -> None:
        _require_commands(harness)
        form, recorder = harness.form(Behavior.LEAVE), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            end = await recorder.end_of(form.job_id)
            assert await harness.processes() == []
        assert end.exit is not None
        assert end.exit.reason is EndReason.EXITED_OK
        assert recorder.records(form.job_id) == _all_records()

    async def test_files_of_a_job_are_read_and_nothing_outside_its_directory(self, harness: ServiceHarness) -> None:
        _require_commands(harness)
        service = harness.service
        if not isinstance(service, SupportsLogs):
            pytest.skip("the service does not support reading files")
        form, recorder = harness.form(Behavior.LINK), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.end_of(form.job_id)
            listed = dict(await service.list_job_files(form))
            assert listed["output/kept"] == len("kept\n")
            assert not any("link" in path for path in listed)
            assert await service.read_job_file(form, "output/kept", 0, 100) == b"kept\n"
            assert await service.read_job_file(form, "output/kept", -2, 100) == b"t\n"
            up = "/".join([".."] * 40)
            for path in (
                "output/link",
                OUTSIDE,
                f"{up}{OUTSIDE}",
                f"output/{up}{OUTSIDE}",
                "..",
                "",
                "missing",
                "a\0b",
            ):
                with pytest.raises(FileNotFoundError):
                    await service.read_job_file(form, path, 0, 100)

    async def test_a_checkpoint_that_is_not_there_is_deleted_already(self, harness: ServiceHarness) -> None:
        service = harness.service
        if not isinstance(service, SupportsCheckpointDeletion):
            pytest.skip("the service does not support deleting checkpoints")
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.end_of(form.job_id)
            for _ in range(2):
                await service.delete_checkpoint(form, "output/checkpoints/1")

    async def test_a_service_that_cannot_find_jobs_again_ends_them_before_it_ends(
        self, harness: ServiceHarness
    ) -> None:
        if isinstance(harness.service, SupportsReattach):
            pytest.skip("the service supports re-attaching")
        form, recorder = harness.form(Behavior.HANG), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.start_of(form.job_id)
        assert await harness.processes() == []

    async def test_a_removed_listener_hears_nothing(self, harness: ServiceHarness) -> None:
        form, recorder, deaf = harness.form(Behavior.REPORT), Recorder(), Recorder()
        assert isinstance(harness.service, SupportsEvents)
        harness.service.remove_trial_job_metric_listener(deaf.take_metrics)  # never added: no error
        harness.service.remove_status_listener(deaf.take_changes)
        recorder.listen(harness.service)
        deaf.listen(harness.service)
        harness.service.remove_trial_job_metric_listener(deaf.take_metrics)
        harness.service.remove_status_listener(deaf.take_changes)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.end_of(form.job_id)
        assert not deaf.changes
        assert not deaf.journals

    async def test_metadata_is_read_and_changed_by_known_keys_only(self, harness: ServiceHarness) -> None:
        key, value = harness.metadata
        assert await harness.service.get_cluster_metadata(key) != value
        await harness.service.set_cluster_metadata(key, value)
        assert await harness.service.get_cluster_metadata(key) == value
        with pytest.raises(KeyError):
            await harness.service.get_cluster_metadata("no_such_key")
        with pytest.raises(KeyError):
            await harness.service.set_cluster_metadata("no_such_key", 1)

    async def test_a_shorter_duration_ends_a_running_job(self, harness: ServiceHarness) -> None:
        form, recorder = harness.form(Behavior.HANG), Recorder()
        assert form.max_duration_seconds is None
        recorder.listen(harness.service)
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await recorder.start_of(form.job_id)
            detail = await harness.service.update_trial_job(form.job_id, replace(form, max_duration_seconds=0.01))
            assert detail.form.max_duration_seconds == 0.01
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.DEADLINE

    async def test_a_report_at_its_jobs_milestone_waits_until_an_update_names_a_later_one(
        self, harness: ServiceHarness
    ) -> None:
        if not harness.shows_milestones:
            pytest.skip("its jobs find no milestones")
        form, recorder = harness.form(Behavior.IMPORT), Recorder()
        waits = {ENV_JUDGED_RANK: "0", ENV_VERDICT_SECONDS: "600"}
        parameters = '{"parameter_id":0,"parameters":{"x":0.5}}'
        form = replace(form, milestone=1, environment={**form.environment, **waits}, parameter_file=parameters)
        service = harness.service
        recorder.listen(service)
        async with serving(service):
            await service.submit_trial_job(form)
            await recorder.start_of(form.job_id)
            detail = await service.update_trial_job(form.job_id, replace(form, milestone=None))  # not known: it stays
            assert detail.form.milestone == 1
            if isinstance(service, SupportsLogs):  # read after what was ordered before
                control = await service.read_job_file(form, CONTROL_FILE, 0, 100)
                assert loads(control.decode()) == {"milestone": 1}
            detail = await service.update_trial_job(form.job_id, replace(form, milestone=2))
            assert detail.form.milestone == 2
            end = await recorder.end_of(form.job_id)
        assert end.exit is not None
        assert end.exit.reason is EndReason.EXITED_OK
        assert [kind for kind, _ in recorder.records(form.job_id)] == ["intermediate", "final"]

    async def test_a_job_that_can_never_run_is_refused_with_a_sentence(self, harness: ServiceHarness) -> None:
        form, recorder = harness.impossible_form(), Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            with pytest.raises(SubmissionRefused) as caught:
                await harness.service.submit_trial_job(form)
            assert len(str(caught.value).split()) > 3
            assert await harness.service.list_trial_jobs() == []
        assert recorder.changes == []

    async def test_cleaning_up_leaves_nothing(self, harness: ServiceHarness) -> None:
        forms, recorder = [harness.form(Behavior.HANG, name) for name in ("first", "second")], Recorder()
        recorder.listen(harness.service)
        async with serving(harness.service):
            for form in forms:
                await harness.service.submit_trial_job(form)
            await recorder.start_of(forms[0].job_id)
        await harness.service.clean_up()
        assert await harness.service.list_trial_jobs() == []
        assert await harness.leftovers() == []

    async def test_cleaning_up_a_service_that_never_ran_is_no_error(self, harness: ServiceHarness) -> None:
        await harness.service.clean_up()
        assert await harness.leftovers() == []

    async def test_it_says_whether_running_jobs_take_new_parameters(self, harness: ServiceHarness) -> None:
        assert harness.service.is_multi_phase_job_supported in {True, False}

    async def test_a_running_job_is_found_again_after_a_restart(self, harness: ServiceHarness) -> None:
        form, before, after = harness.form(Behavior.HANG), Recorder(), Recorder()
        before.listen(_require_reattach(harness.service))
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await before.start_of(form.job_id)
        service = await harness.restart()
        after.listen(service)
        await _require_reattach(service).reattach([form], [])
        await harness.reattached()
        async with serving(service):
            await service.submit_trial_job(form)  # known: starts nothing
            await service.cancel_trial_job(form.job_id)
            end = await after.end_of(form.job_id)
        started = next(change.time for change in before.of(form.job_id) if change.status is TrialJobStatus.RUNNING)
        assert end.exit is not None
        assert end.exit.reason is EndReason.CANCELED
        assert end.exit.started_at == pytest.approx(started.timestamp(), abs=0.001)  # the same process

    async def test_what_was_not_taken_before_a_restart_is_delivered_after_it(self, harness: ServiceHarness) -> None:
        form, before, after = harness.form(Behavior.REPORT), Recorder(refusals=10**9), Recorder()
        before.listen(_require_reattach(harness.service))
        async with serving(harness.service):
            await harness.service.submit_trial_job(form)
            await before.until(lambda: bool(before.refused))
        service = await harness.restart()
        after.listen(service)
        await _require_reattach(service).reattach([form], [])
        await harness.reattached()
        async with serving(service):
            await after.end_of(form.job_id)
        assert after.records(form.job_id) == _all_records()

    async def test_a_job_that_never_arrived_is_started_after_a_restart(self, harness: ServiceHarness) -> None:
        _require_reattach(harness.service)
        form, recorder = harness.form(Behavior.REPORT), Recorder()
        service = await harness.restart()
        recorder.listen(service)
        await _require_reattach(service).reattach([form], [])
        await harness.reattached()
        async with serving(service):
            await recorder.end_of(form.job_id)
        assert recorder.records(form.job_id) == _all_records()


def _all_records() -> list[tuple[str, Any]]:
    return [*(("intermediate", value) for value in VALUES), ("final", FINAL_VALUE)]


def _require_commands(harness: ServiceHarness) -> None:
    if not harness.runs_commands:
        pytest.skip("the platform is a simulation and runs no commands")


async def _until_forgotten(service: TrainingService, job_id: str) -> None:
    """Polls, because such a job is not reported to the listeners."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while job_id in {job.id for job in await service.list_trial_jobs()}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class _ReattachingService(TrainingService, SupportsReattach, ABC):
    """For the type checker."""


def _require_reattach(service: TrainingService) -> _ReattachingService:
    if not isinstance(service, SupportsReattach):
        pytest.skip("the service does not support re-attaching")
    return service  # type: ignore[return-value]
