"""Platform `kubernetes`: each trial job is a Job in the user's namespace, whose pod runs the job's keeper."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any, cast

from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import StatusChange, SupportsNotices, TrialJobForm, TrialJobStatus
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import BrokenPlatform, ServiceUnavailable, SubmissionRefused
from proctor.training_services.job_keeper_service import JobKeeperService, PlatformJob, PlatformStatus
from proctor.training_services.job_keepers.platform import LeftReport, joined
from proctor.training_services.keepers.launches import user_name, write_launch
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.training_services.kubernetes.checks import PROBE_PREFIX, experiment_of, list_anchors, remove_left_probes
from proctor.training_services.kubernetes.client import ApiRefused
from proctor.training_services.kubernetes.manifests import ExperimentManifests
from proctor.training_services.kubernetes.namespaces import Changes, NamespaceView
from proctor.training_services.kubernetes.objects import ExperimentObjects
from proctor.training_services.kubernetes.pod_template import TRIAL_CONTAINER
from proctor.training_services.kubernetes.pods import ClusterPod, created_at
from proctor.training_services.kubernetes.provider import KubernetesProvider
from proctor.training_services.kubernetes.relay import PodRelay
from proctor.training_services.kubernetes.settings import KubernetesSettings
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.linux.backoff import BackOff
from proctor.trial_keeper.pod_output import PodLog, TerminationMessage, add_finals, read_log, read_termination
from proctor.trial_keeper.protocol import End, JobReport, Launch

__all__ = ["TORN_READS", "KubernetesTrainingService"]

log = logging.getLogger(__name__)

REVIEW_SECONDS = 300.0
"""How often all Jobs in the namespace are compared with the expected ones, besides being watched."""
LOG_LINES = 20
LEFT_LINES = 20_000
LEFT_BYTES = 16 * 1024 * 1024
"""How much of the end of a log is read for undelivered reports, which take at most 8 MiB and one report more."""
TORN_READS = 5
"""How often a log that seems to be cut is read again, in case it was not complete yet."""
NO_LOGS = "why a keeper has failed, and what it left, cannot be read"
NO_EVENTS = "the start and the end of trials are not among the events of their Jobs"
EVENT_TRIES = 6
"""How often an event is sent to a cluster that does not take it: for half a minute."""
SILENCE_SECONDS = 5.0
"""How long a keeper that was started may take to connect before its log is read for the reason."""
_BYTES_PER_MB = 10**6
_EVENTS = {TrialJobStatus.RUNNING: "TrialStarted", TrialJobStatus.ENDED: "TrialEnded"}
_LOG_TIME = re.compile(r"^\S+ \S+ [A-Z]+ ")


def provider_of(context: ServiceContext) -> KubernetesProvider:
    """The manager's connections to clusters. Raises BrokenPlatform."""
    if context.providers is None:
        raise BrokenPlatform("platform kubernetes needs a manager that connects to clusters, and this one does not")
    return cast("KubernetesProvider", context.providers.get("kubernetes"))


class KubernetesTrainingService(JobKeeperService, SupportsNotices):
    """One experiment's trials in a namespace. Settings: see `KubernetesSettings`."""

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        self._settings = KubernetesSettings.read(context.settings)
        settings = self._settings
        super().__init__(
            context,
            pending_timeout_seconds=settings.pending_timeout_seconds,
            grace_seconds=settings.termination_grace_seconds,
            collect_limit_bytes=settings.collect_limit_mb * _BYTES_PER_MB,
            checkpoint_limit_bytes=settings.checkpoint_limit_mb * _BYTES_PER_MB,
            **options,
        )
        self._provider = provider_of(context)
        self._made: ExperimentObjects | None = None
        self._since_list: Changes | None = None
        self._seen: NamespaceView | None = None
        self._noticed: set[str] = set()
        self._recorded: dict[str, set[str]] = {}  # by job: the reasons of the events that its Job has
        self._torn: Counter[str] = Counter()  # by job: how often its log was found to be cut
        self._reaching: dict[str, asyncio.Task[None]] = {}  # by job: connects its pod, or reports why it cannot

    @property
    def place_name(self) -> str:
        namespace = f", namespace {self._settings.namespace}" if self._settings.namespace else ""
        return f"platform kubernetes{namespace}"

    def check(self, form: TrialJobForm) -> None:
        if not form.command.strip():
            raise SubmissionRefused("trialCommand is empty; it says how a trial is started, e.g. `python trial.py`")

    def launch(self, form: TrialJobForm) -> Launch:
        launch = write_launch(form, platform="kubernetes", owner=f"user {user_name()}", rules=GpuRules())
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if form.gpu_number == 0 else {}
        return replace(launch, environment_file=None, environment={**hidden, **launch.environment})

    async def get_cluster_metadata(self, key: str) -> Any:
        if key == "namespace":
            return (await self._view()).namespace
        if key == "pending_timeout_seconds":
            return self._pending_timeout_seconds
        raise KeyError(key)

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        if key != "pending_timeout_seconds":
            raise KeyError(key)
        self._pending_timeout_seconds = value

    # ---- the platform's methods

    async def start_keeper(self, form: TrialJobForm, secret: str) -> None:
        view, objects = await self._view(), await self._objects()
        endpoint = await asyncio.to_thread(self._provider.endpoint, self._settings, view.cluster)
        anchor = await objects.prepare(endpoint)
        job = await objects.create_job(form, keeper_id=self.keeper_of(form), secret=secret, anchor=anchor)
        view.note_created(job)

    async def stop_keeper(self, job_id: str) -> None:
        view, name = await self._view(), self._provider.names.job(job_id)
        await view.cluster.delete(f"{view.jobs_path}/{name}")
        view.note_deleted(name)

    async def list_keepers(self) -> Sequence[PlatformJob]:
        view = await self._view()
        if self._since_list is not None:
            view.end_listening(self._since_list)
        self._since_list = view.listen()
        listed, mine = await view.list(), self._experiment_id
        found = [
            await self._with_output(view, seen) if seen.experiment_id == mine else seen
            for seen in listed
            if not seen.experiment_id.startswith(PROBE_PREFIX)
        ]
        for seen in found:
            self._reach(view, seen)
            if (
                seen.status is PlatformStatus.PENDING and seen.node
            ):  # events that would say what it lacks may be missing
                self._start_again(seen.job_id)
        return found

    async def watch_keepers(self) -> AsyncIterator[PlatformJob]:
        view = await self._view()
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + REVIEW_SECONDS
        changes, self._since_list = self._since_list or view.listen(), None
        try:
            with suppress(TimeoutError):
                while True:
                    async with asyncio.timeout_at(ends_at):
                        taken = await changes.take()
                    for _, seen in taken:
                        if seen.experiment_id == self._experiment_id:
                            self._reach(view, seen)
                            if self._lacks_ours(seen):
                                self._start_again(seen.job_id)
                            yield await self._with_output(view, seen)
        finally:
            view.end_listening(changes)

    async def read_left_report(self, job: PlatformJob, *, is_last: bool) -> LeftReport | None:
        view = await self._view()
        pod = view.first_pod(self._provider.names.job(job.job_id))
        if pod is None:
            return None
        message = read_termination(pod.termination, job_id=job.job_id)
        left, is_cut = await self._read_left(view, pod, job, has_ended=message is not None, is_last=is_last)
        return _complete(left, message, job, is_cut=is_cut)

    async def _read_left(
        self, view: NamespaceView, pod: ClusterPod, job: PlatformJob, *, has_ended: bool, is_last: bool
    ) -> tuple[PodLog, bool]:
        """What the log of a pod holds of its job, and whether something of it is lost. Raises ServiceUnavailable while
        a log that seems to be cut may still become complete.

        :param has_ended: its keeper has reported the end of the job, so that the log cannot be empty.
        """
        text = await self._read_log(view, pod, is_last=is_last)
        left = await asyncio.to_thread(read_log, (text or b"").splitlines(), job_id=job.job_id, token=job.token)
        has_records = bool(left.header.starts or left.header.chunks or left.header.ends)
        is_cut = not left.is_whole and (has_records or has_ended)
        if is_cut:
            if text is not None and not is_last and self._torn[job.job_id] < TORN_READS:
                self._torn[job.job_id] += 1
                raise ServiceUnavailable(f"the log of pod {pod.name} is cut; it will be read again")
            lost = "the log of pod %s was cut or is gone: reports of job %s that no manager had taken may be lost"
            log.error(lost, pod.name, job.job_id, extra={"action": "job.read_report", "job_id": job.job_id})
        self._torn.pop(job.job_id, None)
        return left, is_cut

    async def _read_log(self, view: NamespaceView, pod: ClusterPod, *, is_last: bool) -> bytes | None:
        """The log of a pod's keeper; None if the pod or its log is gone, or the keeper was never started."""
        try:
            text = await view.cluster.read_log(
                view.namespace, pod.name, TRIAL_CONTAINER, tail_lines=LEFT_LINES, limit_bytes=LEFT_BYTES
            )
        except ServiceUnavailable as error:
            view.note_refusal(NO_LOGS, error)
            if not is_last and not (isinstance(error, ApiRefused) and error.status in (400, 404)):
                raise
            return None
        view.note_right(NO_LOGS)
        return text

    async def run(self) -> None:
        self._provider.hold(self._experiment_id)
        await super().run()

    async def clean_up(self) -> None:
        await super().clean_up()
        objects = await self._objects()
        failpoint("manager.anchor.delete.before")
        await objects.delete()
        failpoint("manager.anchor.delete.after")
        await self._provider.forget(self._experiment_id)

    def begin_serving(self) -> None:
        super().begin_serving()
        self._start(self._remove_left_anchors(), "what deleted experiments have left")

    async def _remove_left_anchors(self) -> None:
        """Remove the objects of experiments that were deleted while the cluster could not be reached. Those of
        experiments that are in no database are only reported."""
        view, names = await self._view(), self._provider.names
        try:
            await remove_left_probes(view.cluster, view.namespace, names, is_in_use=self._provider.is_held)
            anchors = await list_anchors(view.cluster, view.namespace, names)
            reports = [
                JobReport(each["metadata"]["name"], "", None, created_at(each), experiment_id=experiment_of(each))
                for each in anchors
                if not self._provider.is_held(experiment_of(each))
            ]
            place, mine = f"{self.place_name}, experiments", self._experiment_id
            removable = await self._hub.removable_jobs(place, reports, experiment_id=mine)
            for anchor in anchors:
                name, uid = anchor["metadata"]["name"], anchor["metadata"]["uid"]
                if name in removable and not self._provider.is_held(
                    experiment_of(anchor)
                ):  # its id may be in use again
                    log.info("removing the objects of a deleted experiment: %s", name, extra={"action": "job.remove"})
                    await view.cluster.delete(f"/api/v1/namespaces/{view.namespace}/configmaps/{name}", uid=uid)
        except ServiceUnavailable as error:
            log.warning("%s: objects of deleted experiments are not removed now: %s", self.place_name, error)

    # ---- what people see

    def take_notices(self) -> Sequence[str]:
        refusals = {} if self._seen is None else self._seen.refusals
        news = [loss for loss in refusals if loss not in self._noticed]
        self._noticed.update(news)
        advice = "give its user the Role of docs/kubernetes.md#rights"
        return [f"{self.place_name}: {loss}, because a right is missing: {refusals[loss]}; {advice}" for loss in news]

    def on_delivered(self, change: StatusChange) -> None:
        """Record the start and the end of a trial job as events of its Job."""
        job, view = self._jobs.get(change.job_id), self._seen
        reason = _EVENTS.get(change.status)
        if job is None or view is None or reason is None or self._group is None:
            return
        recorded, uid = self._recorded.setdefault(job.id, set()), view.uid(self._provider.names.job(job.id))
        if uid and reason not in recorded:
            recorded.add(reason)
            self._start(self._record(view, job.form, uid, reason, change), f"event of {job.id}")

    async def _record(
        self, view: NamespaceView, form: TrialJobForm, uid: str, reason: str, change: StatusChange
    ) -> None:
        what = "has started" if change.exit is None else f"has ended: {change.exit.reason}"
        said = f"; {change.detail}" if change.detail else ""
        message = f"trial {form.trial_id} (job {form.job_id}) of experiment {self._experiment_id} {what}{said}"
        backoff = BackOff()
        for _ in range(EVENT_TRIES):  # it is only for people
            try:
                objects = await self._objects()
                await objects.add_event(form, uid, reason=reason, message=message, time=change.time)
            except ServiceUnavailable as error:
                view.note_refusal(NO_EVENTS, error)
                if isinstance(error, ApiRefused) and error.status < 500 and error.status != 429:
                    return
                await asyncio.sleep(backoff.take())
            else:
                view.note_right(NO_EVENTS)
                return

    # ---- the connections of pods

    async def reach_keeper(self, seen: PlatformJob) -> None:
        self._reach(await self._view(), seen)

    def leave_keeper(self, job_id: str) -> None:
        self._torn.pop(job_id, None)
        self._recorded.pop(job_id, None)
        if (reaching := self._reaching.pop(job_id, None)) is not None:
            reaching.cancel()

    def _reach(self, view: NamespaceView, seen: PlatformJob) -> None:
        """Connect to the pod of a running job, or watch whether it connects by itself."""
        is_known = seen.job_id in self._jobs or seen.job_id in self._departures
        is_ours = is_known and seen.status is PlatformStatus.RUNNING and len(seen.instances) == 1
        pod = view.first_pod(self._provider.names.job(seen.job_id))
        before = self._reaching.get(seen.job_id)
        if not is_ours or pod is None or self._group is None or (before is not None and not before.done()):
            return
        if self._provider.is_direct(self._settings, view.cluster):
            reaching = self._explain_silence(view, seen.job_id, pod)
        else:
            reaching = self._keep_relaying(view, seen.job_id, pod.name)
        self._reaching[seen.job_id] = self._start(reaching, f"connection of {seen.job_id}")

    async def _explain_silence(self, view: NamespaceView, job_id: str, pod: ClusterPod) -> None:
        """While a keeper does not connect, report the reason that it logs."""
        backoff = BackOff(first_seconds=SILENCE_SECONDS)
        while True:
            await asyncio.sleep(backoff.take())
            if not self.absence(job_keeper_id(job_id)):
                return
            try:
                text = await view.cluster.read_log(view.namespace, pod.name, TRIAL_CONTAINER, tail_lines=1)
            except ServiceUnavailable as error:
                view.note_refusal(NO_LOGS, error)
                text = str(error).encode()
            said = _LOG_TIME.sub("", text.decode(errors="replace").strip())
            clause = f"its keeper was started on node {pod.node} and has not connected to this manager"
            self.note_unreachable(job_id, f"{clause}; its log says: {said}" if said else clause)

    async def _keep_relaying(self, view: NamespaceView, job_id: str, pod: str) -> None:
        backoff = BackOff(longest_seconds=15.0)
        while True:
            try:
                manager = self._provider.socket()
                await PodRelay(view.cluster, view.namespace, pod, self._settings.python, manager).run()
            except (ServiceUnavailable, OSError) as error:
                self.note_unreachable(job_id, f"its pod cannot be reached through the API server: {error}")
            await asyncio.sleep(backoff.take())

    # ---- objects

    async def _view(self) -> NamespaceView:
        self._seen = await self._provider.view(self._settings, self._experiment_id)
        return self._seen

    async def _objects(self) -> ExperimentObjects:
        view, archive = await self._view(), await self._provider.archive()
        if self._made is None:  # nothing is awaited from here on: jobs that start together share the objects' lock
            manifests = ExperimentManifests(
                self._provider.names, self._experiment_id, self._settings, version("proctor")
            )
            self._made = ExperimentObjects(view.cluster, view.namespace, manifests, archive)
        return self._made

    def _lacks_ours(self, seen: PlatformJob) -> bool:
        """Whether a pod waits for an object that we had made and someone has deleted."""
        names = self._provider.names
        ours = (names.anchor(self._experiment_id), names.job(seen.job_id))
        is_missing = seen.status is PlatformStatus.PENDING and "not found" in seen.detail
        return is_missing and any(f'"{name}' in seen.detail for name in ours)

    async def _with_output(self, view: NamespaceView, seen: PlatformJob) -> PlatformJob:
        """Add the last lines of the log, if the keeper has failed by itself."""
        if seen.status is not PlatformStatus.ENDED or seen.reason is not None or seen.exit_code in (0, None):
            return seen
        pod = view.first_pod(self._provider.names.job(seen.job_id))
        if pod is None:
            return seen
        try:
            output = await view.cluster.read_log(view.namespace, pod.name, TRIAL_CONTAINER, tail_lines=LOG_LINES)
        except ServiceUnavailable as error:
            view.note_refusal(NO_LOGS, error)
            output = f"(its log cannot be read: {error})".encode()
        return replace(seen, output=output.decode(errors="replace"))


def _complete(left: PodLog, message: TerminationMessage | None, job: PlatformJob, *, is_cut: bool) -> LeftReport | None:
    """The report in a log, with what only the termination message has: final metrics that were cut off, and the end."""
    if is_cut and message is not None:
        left = add_finals(left, message, token=job.token)
    ends = left.header.ends
    if message is not None and not ends:
        ends = [End(job.job_id, job.token, message.exit)]
    if is_cut:
        ends = [_with_detail(end, "reports may be lost: the log of its pod was cut or is gone") for end in ends]
    if not left.header.chunks and not ends:
        return None
    return LeftReport(replace(left.header, ends=ends), left.body, is_cut)


def _with_detail(end: End, clause: str) -> End:
    return replace(end, exit=replace(end.exit, detail=joined(end.exit.detail, clause)))
