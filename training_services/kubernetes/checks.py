"""What `proctor doctor --config` looks at in a cluster, and what `proctor platform clean` removes there."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.kubernetes.client import Cluster, KubernetesObject
from proctor.training_services.kubernetes.manifests import EXPERIMENT_ANNOTATION, Names, manager_selector
from proctor.training_services.providers import CheckStep, CheckVerdict

__all__ = [
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
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Right:
    """What the manager's user does in the namespace with one kind of objects."""

    group: str
    resource: str  # with its subresource: "pods/log"
    verbs: tuple[str, ...]
    is_needed: bool = True


RIGHTS = (
    Right("batch", "jobs", ("create", "delete", "get", "list", "watch")),
    Right("", "pods", ("list", "watch")),
    Right("", "pods/log", ("get",)),
    Right("", "configmaps", ("create", "delete", "get", "list", "patch")),
    Right("", "secrets", ("create",)),
    Right("", "events", ("list", "watch"), is_needed=False),
)
"""All that platform kubernetes does, and the whole of the Role in `deploy/kubernetes`."""
RIGHTS_FOR_EXEC = (Right("", "pods/exec", ("create", "get")),)
"""What is needed besides where pods do not reach the manager (no managerUrl)."""


@dataclass
class ClusterChecks:
    """The steps of one check, each added as it is done.

    :param place: what they are about, for people.
    """

    place: str
    steps: list[CheckStep] = field(default_factory=list)

    def add(self, name: str, found: str, advice: str = "", verdict: CheckVerdict = CheckVerdict.OK) -> None:
        """A step that was done."""
        self.steps.append(CheckStep(self.place, name, verdict, found, advice))

    @contextmanager
    def step(self, name: str, advice: str = "") -> Iterator[None]:
        """Take one step, which adds itself. An error in it is its failure, and no reason to stop."""
        try:
            yield
        except (TrainingServiceError, OSError) as error:
            self.add(name, str(error), advice, CheckVerdict.FAIL)

    async def check_rights(self, cluster: Cluster, namespace: str, rights: Sequence[Right]) -> None:
        """Whether the user may do what the manager will."""
        with self.step("rights"):
            missing = await find_missing_rights(cluster, namespace, rights)
            needed = [text for text, is_needed in missing if is_needed]
            if missing:
                advice = "give its user the Role of docs/kubernetes.md#rights"
                found = f"its user cannot {', '.join(text for text, _ in missing)} in namespace {namespace}"
                if not needed:
                    advice += "; without it reasons such as a quota are not shown"
                self.add("rights", found, advice, CheckVerdict.FAIL if needed else CheckVerdict.NOTE)
            else:
                self.add("rights", f"its user may do all that is needed in namespace {namespace}")


async def find_missing_rights(cluster: Cluster, namespace: str, rights: Sequence[Right]) -> list[tuple[str, bool]]:
    """What of `rights` the user does not have, each as words, "create jobs.batch", and whether nothing goes without it.
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
    pages = [page async for page, _ in cluster.list(f"/api/v1/namespaces/{namespace}/configmaps", query)]
    return [anchor for page in pages for anchor in page if "ownerReferences" not in anchor["metadata"]]


def experiment_of(anchor: KubernetesObject) -> str:
    """The id of its experiment."""
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
    """Delete what the manager has in a namespace, but for experiments that are in use; everything goes with the anchor
    of its experiment. Returns the experiments whose objects were deleted, and those that were left alone. Raises
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
