"""What `proctor doctor` and `create` check in a cluster, and what `proctor platform clean` deletes there."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.kubernetes.client import ApiRefused, Cluster, KubernetesObject
from proctor.training_services.kubernetes.manifests import EXPERIMENT_ANNOTATION, Names, manager_selector
from proctor.training_services.kubernetes.pods import is_refused_for_good
from proctor.training_services.providers import CheckStep, CheckVerdict

__all__ = [
    "PROBE_PREFIX",
    "RIGHTS",
    "RIGHTS_FOR_EXEC",
    "ClusterChecks",
    "Right",
    "clean_namespace",
    "experiment_of",
    "find_missing_rights",
    "list_anchors",
    "remove_left_probes",
]

PROBE_PREFIX = "doctor."
"""What the experiment ids of probes begin with; those of experiments have no dot."""
_ADVICE = {
    "runAsNonRoot": "give trainingService.runAsUser, such as 10001",
    "PodSecurity": "see docs/kubernetes.md#pod-security",
    "no PriorityClass": "check trainingService.priorityClass, or have it made",
    "service account": "check trainingService.serviceAccount, or make it",
    "namespaces ": "check trainingService.namespace, or make it",
}
"""What to do, by a part of the cluster's sentence."""
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Right:
    """The verbs that the manager uses on one resource in the namespace."""

    group: str
    resource: str  # with its subresource: "pods/log"
    verbs: tuple[str, ...]
    is_needed: bool = True


RIGHTS = (
    Right("batch", "jobs", ("create", "delete", "get", "list", "watch")),
    Right("", "pods", ("list", "watch")),
    Right("", "pods", ("create",), is_needed=False),
    Right("", "pods/log", ("get",)),
    Right("", "configmaps", ("create", "delete", "get", "list", "patch")),
    Right("", "secrets", ("create",)),
    Right("", "events", ("create", "list", "watch"), is_needed=False),
)
"""All that platform kubernetes needs; the Role in `deploy/kubernetes` has exactly these."""
RIGHTS_FOR_EXEC = (Right("", "pods/exec", ("create", "get")),)
"""Needed in addition where pods cannot reach the manager (no managerUrl)."""


@dataclass
class ClusterChecks:
    """The steps of one check, in the order in which they were taken.

    :param place: the cluster and namespace, as shown to the user.
    """

    place: str
    steps: list[CheckStep] = field(default_factory=list)

    def add(self, name: str, found: str, advice: str = "", verdict: CheckVerdict = CheckVerdict.OK) -> None:
        """Add a step."""
        self.steps.append(CheckStep(self.place, name, verdict, found, advice))

    @contextmanager
    def step(self, name: str, advice: str = "") -> Iterator[None]:
        """Take one step, which adds its own result. An error makes it fail; the check continues."""
        try:
            yield
        except (TrainingServiceError, OSError) as error:
            self.add(name, str(error), advice, CheckVerdict.FAIL)

    async def check_objects(self, cluster: Cluster, namespace: str, job: KubernetesObject) -> None:
        """Have the cluster check the Job of a trial and its pod, without creating them. Raises ServiceUnavailable."""
        template = job["spec"]["template"]
        metadata = {**template.get("metadata", {}), "name": job["metadata"]["name"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        warnings: list[str] = []
        untried: dict[str, str] = {}
        for path, body in (("apis/batch/v1", job), ("api/v1", pod)):
            kind = body["kind"].lower()
            try:
                warnings += await cluster.try_creating(f"/{path}/namespaces/{namespace}/{kind}s", body)
            except ApiRefused as error:
                if _is_untried(error):
                    untried[kind] = str(error)
                elif self._add_refusal(error):
                    return
        if "job" in untried:
            self.add("objects", f"a trial's Job cannot be tried: {untried['job']}", verdict=CheckVerdict.NOTE)
        pod_clause = f"the pod of a trial could not be tried: {untried['pod']}" if "pod" in untried else ""
        for text in dict.fromkeys(warnings):
            found = f"the cluster warns of the objects of trials: {text}"
            self.add("objects", found, pod_clause, CheckVerdict.NOTE)
        if not any(step.name == "objects" for step in self.steps):
            accepted = f"Job of a trial; {pod_clause}" if pod_clause else "objects of trials"
            self.add("objects", f"the cluster accepts the {accepted}")

    def _add_refusal(self, error: ApiRefused) -> bool:
        """Add the step of an object that the cluster refuses in a dry run. Returns whether trials cannot run."""
        sentence = str(error)
        if error.is_permanent or error.status == 404 or is_refused_for_good(sentence):
            advice = next((advice for part, advice in _ADVICE.items() if part in sentence), "change podTemplate")
            self.add("objects", f"the cluster refuses the objects of trials: {sentence}", advice, CheckVerdict.FAIL)
            return True
        self.add("objects", f"trials will wait: {sentence}", verdict=CheckVerdict.NOTE)
        return False

    async def check_rights(self, cluster: Cluster, namespace: str, rights: Sequence[Right]) -> None:
        """Check that the user has these rights."""
        with self.step("rights"):
            missing = await find_missing_rights(cluster, namespace, rights)
            needed = [text for text, is_needed in missing if is_needed]
            if missing:
                advice = "give its user the Role of docs/kubernetes.md#rights"
                found = f"its user cannot {', '.join(text for text, _ in missing)} in namespace {namespace}"
                if not needed:
                    advice += "; trials run without it, and less of what is in their way is explained"
                self.add("rights", found, advice, CheckVerdict.FAIL if needed else CheckVerdict.NOTE)
            else:
                self.add("rights", f"its user may do all that is needed in namespace {namespace}")


def _is_untried(error: ApiRefused) -> bool:
    """Whether a dry run was not done at all: pods are tried only where that is allowed."""
    sentence = str(error)
    return "does not support dry run" in sentence or (error.status == 403 and "cannot create resource" in sentence)


async def find_missing_rights(cluster: Cluster, namespace: str, rights: Sequence[Right]) -> list[tuple[str, bool]]:
    """The rights that the user lacks: each as text ("create jobs.batch"), and whether trials cannot run without it.
    Raises ServiceUnavailable."""
    missing = []
    for right in rights:
        resource, _, subresource = right.resource.partition("/")
        for verb in right.verbs:
            asked = {"namespace": namespace, "verb": verb, "group": right.group, "resource": resource}
            spec = {"resourceAttributes": {**asked, "subresource": subresource}}
            kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
            answer = await cluster.create(_REVIEWS, {**kind, "spec": spec})
            if not answer["status"].get("allowed"):
                name = f"{right.resource}.{right.group}" if right.group else right.resource
                missing.append((f"{verb} {name}", right.is_needed))
    return missing


async def list_anchors(cluster: Cluster, namespace: str, names: Names) -> list[KubernetesObject]:
    """The anchors of all experiments of a manager. Raises ServiceUnavailable."""
    query = {"labelSelector": f"{manager_selector(names)},app.kubernetes.io/component=experiment"}
    pages = cluster.list(f"/api/v1/namespaces/{namespace}/configmaps", query)
    return [anchor async for page, _ in pages for anchor in page if "ownerReferences" not in anchor["metadata"]]


def experiment_of(anchor: KubernetesObject) -> str:
    """The id of an anchor's experiment."""
    return str((anchor["metadata"].get("annotations") or {}).get(EXPERIMENT_ANNOTATION, ""))


async def remove_left_probes(
    cluster: Cluster, namespace: str, names: Names, *, is_in_use: Callable[[str], bool]
) -> None:
    """Delete what checks have left that did not end as they should. Raises ServiceUnavailable."""
    for anchor in await list_anchors(cluster, namespace, names):
        if (experiment_id := experiment_of(anchor)).startswith(PROBE_PREFIX) and not is_in_use(experiment_id):
            await cluster.delete(f"/api/v1/namespaces/{namespace}/configmaps/{anchor['metadata']['name']}")


async def clean_namespace(
    cluster: Cluster, namespace: str, names: Names, *, in_use: Collection[str]
) -> tuple[list[str], list[str]]:
    """Delete all objects of the manager in a namespace except those of experiments in use, by deleting the anchors that
    own them. Returns the experiments whose objects were deleted, and those that were left alone. Raises
    ServiceUnavailable.
    """
    anchors = await list_anchors(cluster, namespace, names)
    left = {experiment_of(anchor) for anchor in anchors} & set(in_use)
    removed = set()
    for anchor in anchors:
        if (experiment_id := experiment_of(anchor)) not in in_use:
            name, uid = anchor["metadata"]["name"], anchor["metadata"]["uid"]
            await cluster.delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}", uid=uid)
            removed.add(experiment_id)
    return sorted(removed), sorted(left)
