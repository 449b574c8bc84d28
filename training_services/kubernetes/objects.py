"""Creating the objects of an experiment in its namespace, and finding those that exist."""

import asyncio

from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.keepers.archive import KeeperArchive
from proctor.training_services.kubernetes.client import ApiRefused, Cluster, KubernetesObject
from proctor.training_services.kubernetes.manifests import ENDPOINT_KEY, TOKEN_ANNOTATION, ExperimentManifests

__all__ = ["ExperimentObjects"]

_NEVER = frozenset({400, 413, 422})
"""The HTTP statuses for objects that can never be created as they are."""


class ExperimentObjects:
    """The objects of one experiment."""

    def __init__(
        self, cluster: Cluster, namespace: str, manifests: ExperimentManifests, archive: KeeperArchive
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._manifests = manifests
        self._archive = archive
        self._anchor_uid = ""  # of the anchor whose keeper file has been created
        self._preparing = asyncio.Lock()

    async def prepare(self, endpoint: str) -> KubernetesObject:
        """Create the anchor, with this endpoint, and the keeper's file, unless they exist; returns the anchor. Raises
        ServiceUnavailable."""
        async with self._preparing:
            wanted = self._manifests.anchor(endpoint)
            place = f"{self._core('configmaps')}/{wanted['metadata']['name']}"
            there = await self._find(place) or await self._create(self._core("configmaps"), wanted)
            if (there.get("data") or {}).get(ENDPOINT_KEY) != endpoint:
                there = await self._cluster.patch(place, {"data": wanted["data"]})
            there = {**there, "apiVersion": "v1", "kind": "ConfigMap"}
            if there["metadata"]["uid"] != self._anchor_uid:
                data = await asyncio.to_thread(self._archive.path.read_bytes)
                keeper = self._manifests.keeper(self._archive.sha256, data, there)
                await self._create(self._core("configmaps"), keeper)
                self._anchor_uid = there["metadata"]["uid"]
            return there

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
            if error.status in _NEVER:
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

    async def delete(self) -> None:
        """Delete the anchor and everything that it owns. Raises ServiceUnavailable."""
        name = self._manifests.names.anchor(self._manifests.experiment_id)
        await self._cluster.delete(f"{self._core('configmaps')}/{name}")
        self._anchor_uid = ""

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
        metadata, wanted = found["metadata"], body["metadata"].get("ownerReferences", [])
        if [each["uid"] for each in metadata.get("ownerReferences") or ()] != [each["uid"] for each in wanted]:
            raise ServiceUnavailable(f"{body['kind']} {metadata['name']} of an earlier experiment is being deleted")
        return found
