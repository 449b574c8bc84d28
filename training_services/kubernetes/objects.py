"""Creating the objects of an experiment in its namespace, and finding those that exist."""

import asyncio
from datetime import datetime

from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.keepers.archive import KeeperArchive
from proctor.training_services.kubernetes.client import ApiRefused, Cluster, KubernetesObject
from proctor.training_services.kubernetes.manifests import ENDPOINT_KEY, TOKEN_ANNOTATION, ExperimentManifests

__all__ = ["ExperimentObjects"]


class ExperimentObjects:
    """The objects of one experiment."""

    def __init__(
        self, cluster: Cluster, namespace: str, manifests: ExperimentManifests, archive: KeeperArchive
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._manifests = manifests
        self._archive = archive
        self._preparing = asyncio.Lock()

    async def prepare(self, endpoint: str) -> KubernetesObject:
        """Create the anchor, with this endpoint, and the keeper's file, unless they exist; returns the anchor. Both are
        looked for each time, because others may delete them. Raises ServiceUnavailable."""
        async with self._preparing:
            wanted = self._manifests.anchor(endpoint)
            place = f"{self._core('configmaps')}/{wanted['metadata']['name']}"
            there = await self._find(place) or await self._create(self._core("configmaps"), wanted)
            if (there.get("data") or {}).get(ENDPOINT_KEY) != endpoint:
                there = await self._cluster.patch(place, {"data": wanted["data"]})
            there = {**there, "apiVersion": "v1", "kind": "ConfigMap"}
            await self._prepare_keeper(there)
            return there

    async def _prepare_keeper(self, anchor: KubernetesObject) -> None:
        """Create the keeper's file unless it exists: 0.8 MB, of which only the metadata is read."""
        name = self._manifests.names.keeper(self._manifests.experiment_id, self._archive.sha256)
        found = await self._cluster.find_metadata(f"{self._core('configmaps')}/{name}")
        if found is None:
            data = await asyncio.to_thread(self._archive.path.read_bytes)
            await self._create(self._core("configmaps"), self._manifests.keeper(self._archive.sha256, data, anchor))
        else:
            _require_owner("ConfigMap", found, anchor["metadata"]["uid"])

    async def create_job(
        self, form: TrialJobForm, *, keeper_id: str, secret: str, anchor: KubernetesObject
    ) -> KubernetesObject:
        """Create the Job of a trial job and its Secret, unless they exist; returns the Job. Raises SubmissionRefused if
        it can never be created, ServiceUnavailable."""
        body = self._manifests.job(form, keeper_id=keeper_id, keeper_sha256=self._archive.sha256, owner=anchor)
        name = body["metadata"]["name"]
        try:
            job = await self._create(f"/apis/batch/v1/namespaces/{self._namespace}/jobs", body)
        except ApiRefused as error:
            if error.is_permanent:
                raise SubmissionRefused(f"the cluster refuses its Job: {error}") from error
            raise
        if "deletionTimestamp" in job["metadata"]:
            raise ServiceUnavailable(f"Job {name} of an earlier attempt is still being deleted")
        if (job["metadata"].get("annotations") or {}).get(TOKEN_ANNOTATION) != form.token:
            raise SubmissionRefused(f"Job {name} exists already and does not belong to trial job {form.job_id}")
        job = {**job, "apiVersion": "batch/v1", "kind": "Job"}
        try:  # an existing one is ours; it is not read, so that the right to read Secrets is not needed
            await self._cluster.create(self._core("secrets"), self._manifests.secret(form, secret, job))
        except ApiRefused as error:
            if error.status != 409:
                raise
        return job

    async def add_event(self, form: TrialJobForm, uid: str, *, reason: str, message: str, time: datetime) -> None:
        """Add an event to a Job, unless it has one for that reason. Raises ServiceUnavailable."""
        body = self._manifests.event(form, uid, reason=reason, message=message, time=time)
        body["involvedObject"]["namespace"] = body["metadata"]["namespace"] = self._namespace
        try:
            await self._cluster.create(self._core("events"), body)
        except ApiRefused as error:
            if error.status != 409:
                raise

    async def delete(self) -> None:
        """Delete the anchor and everything that it owns. Raises ServiceUnavailable."""
        name = self._manifests.names.anchor(self._manifests.experiment_id)
        await self._cluster.delete(f"{self._core('configmaps')}/{name}")

    def _core(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{plural}"

    async def _find(self, path: str) -> KubernetesObject | None:
        try:
            return await self._cluster.get(path)
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None

    async def _create(self, path: str, body: KubernetesObject) -> KubernetesObject:
        """Create an object, or return the one that exists; one whose owner was deleted is about to be deleted."""
        try:
            return await self._cluster.create(path, body)
        except ApiRefused as error:
            if error.status != 409:
                raise
        found = await self._cluster.get(f"{path}/{body['metadata']['name']}")
        for owner in body["metadata"].get("ownerReferences", ()):
            _require_owner(body["kind"], found["metadata"], owner["uid"])
        return found


def _require_owner(kind: str, metadata: KubernetesObject, uid: str) -> None:
    """Raise ServiceUnavailable if an object has another owner than this one: it goes with that."""
    name, owners = metadata["name"], metadata.get("ownerReferences") or ()
    if not owners:
        raise ServiceUnavailable(f"{kind} {name} has lost its owner, so the cluster does not delete it; delete it")
    if uid not in [each["uid"] for each in owners]:
        raise ServiceUnavailable(f"{kind} {name} of an earlier experiment is being deleted")
