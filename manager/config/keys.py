"""The table of every NNI v2 key: honored, accepted with a notice, or refused. `operators.py` has those of
NNI's sections for Kubernetes.

All rows are rendered into docs/configuration.md, and each is tested. Rows that are not honored drive the reading of
configurations: what is refused or has no effect is reported and taken out of the tree (`apply_treatments`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.fields import BOOLEAN_WORDS
from proctor.manager.config.key_names import folded
from proctor.manager.config.objective import ONE_OBJECTIVE
from proctor.manager.config.operators import OPERATOR_PATHS
from proctor.manager.config.platforms import PLATFORMS, Availability
from proctor.manager.config.tree import Member, TreeNode, describe, plain
from proctor.manager.config.version1 import OLD_CLASS_FILE, OLD_KEYS, OLD_MACHINE_KEYS


class Treatment(StrEnum):
    """What becomes of a key."""

    HONORED = "honored"  # it does what NNI's documentation says, or what its sentence here says
    NOTICE = "notice"  # accepted, has no effect, and a notice says so
    REFUSED = "refused"  # the experiment is not started


ANY = object()
"""Stands for every value of a key."""


@dataclass(frozen=True)
class Key:
    """One row: a key (or one value of it) and its treatment."""

    section: str
    path: str
    treatment: Treatment
    example: object
    sentence: str = ""
    """What the user reads; empty for honored keys, whose field in the model says it."""
    value: object = ANY
    """Only this value (upper or lower case) is treated so."""
    platform: str | None = None
    """The platform whose section the key belongs to; None outside trainingService and for all platforms."""
    expected: str = "no such key"
    """What was expected, where the key is refused."""
    stays: bool = False
    """A refused key whose value is validated all the same."""

    @property
    def effective(self) -> Treatment:
        """The treatment, given what is available: keys of a refused platform are refused with it."""
        return Treatment.REFUSED if self._unavailable else self.treatment

    @property
    def effective_sentence(self) -> str:
        """The sentence that goes with `effective`."""
        if not self._unavailable:
            return self.sentence
        return f"platform {self.platform}: see the table of platforms"

    @property
    def _unavailable(self) -> bool:
        return self.platform is not None and PLATFORMS[self.platform].availability is not Availability.SUPPORTED


EXPERIMENT = "Experiment"
ALGORITHMS = "Tuner, assessor and trial scheduler"
SERVICE = "trainingService, any platform"
LOCAL = "trainingService, platform local"
REMOTE = "trainingService, platform remote"
KUBERNETES = "trainingService, platform kubernetes"
OTHER_PLATFORMS = "trainingService, other platforms of NNI"
STORAGE = "sharedStorage"
ADDITIONS = "Additions of this project"


def _honored(section: str, examples: dict[str, object], platform: str | None = None) -> Iterator[Key]:
    for path, example in examples.items():
        yield Key(section, path, Treatment.HONORED, example, platform=platform)


_NAS = Key(
    EXPERIMENT,
    "experimentType",
    Treatment.REFUSED,
    "nas",
    "architecture search is not offered: write the choices of your network as a searchSpace of experimentType hpo",
    value="nas",
    expected="hpo",
)
_NO_MANAGER_ADDRESS = (
    "has no effect: workers need no address of the manager; pods that are to connect to it (platform kubernetes) find "
    "it by managerUrl, such as https://10.0.0.5:8443"
)
_ANNOTATION = Key(
    EXPERIMENT,
    "useAnnotation",
    Treatment.REFUSED,
    True,
    "annotations are not offered (nor by NNI 3.0): call get_next_parameter() and write a searchSpace",
    value=True,
    expected="false",
)
_NO_ANNOTATION = Key(
    EXPERIMENT, "useAnnotation", Treatment.NOTICE, False, "has no effect: there are no annotations to turn off"
)
_LIST_OF_SERVICES = Key(
    EXPERIMENT,
    "trainingService (a list)",
    Treatment.REFUSED,
    [{"platform": "local"}],
    PLATFORMS["hybrid"].refusal,
)
_LIST_OF_OBJECTIVES = Key(
    ADDITIONS,
    "objective (a list)",
    Treatment.REFUSED,
    [{"metric": "accuracy", "direction": "maximize"}, {"metric": "latency", "direction": "minimize"}],
    ONE_OBJECTIVE,
    expected="a mapping",
)
_SHARED_STORAGE = Key(
    EXPERIMENT,
    "sharedStorage",
    Treatment.REFUSED,
    {
        "storageType": "NFS",
        "nfsServer": "files",
        "exportedDirectory": "/export",
        "localMountPoint": "/mnt/a",
        "remoteMountPoint": "/mnt/b",
        "localMounted": "usermount",
    },
    "shared storage is not yet available; trials of platform local see this machine's own mounts, so remove "
    "the section and use the paths themselves",
    stays=True,
)


def _experiment() -> Iterator[Key]:
    yield from _honored(EXPERIMENT, {"experimentName": "digits", "experimentType": "hpo"})
    yield _NAS
    yield from _honored(
        EXPERIMENT,
        {
            "searchSpaceFile": "space.json",
            "searchSpace": {"x": {"_type": "uniform", "_value": [2, 3]}},
            "trialCommand": "python other.py",
            "trialCodeDirectory": "code",
            "trialConcurrency": 3,
            "trialGpuNumber": 0,
            "maxExperimentDuration": "1.5h",
            "maxTrialDuration": "10m",
            "maxTrialNumber": 7,
            "debug": True,
            "logLevel": "warning",
            "experimentWorkingDirectory": "experiments",
            "tunerGpuIndices": "0,1",
        },
    )
    yield Key(EXPERIMENT, "nniManagerIp", Treatment.NOTICE, "10.0.0.1", _NO_MANAGER_ADDRESS)
    yield from (_ANNOTATION, _NO_ANNOTATION)
    yield from _honored(EXPERIMENT, {"tuner": {"name": "Evolution"}, "assessor": {"name": "Medianstop"}})
    yield from _advisor()
    yield from _honored(EXPERIMENT, {"trainingService": {"platform": "local", "useActiveGpu": True}})
    yield from (_LIST_OF_SERVICES, _SHARED_STORAGE)


def _advisor() -> Iterator[Key]:
    yield Key(
        EXPERIMENT,
        "advisor.className",
        Treatment.REFUSED,
        "my.Advisor",
        "custom advisors are not offered: write a Tuner (and an Assessor) and name them under tuner and assessor",
    )
    yield Key(
        EXPERIMENT,
        "advisor",
        Treatment.NOTICE,
        {"name": "Hyperband"},
        "is an old name of tuner; read as tuner",
    )


def _algorithms() -> Iterator[Key]:
    arguments: dict[str, tuple[str, dict[str, object], str]] = {
        "tuner": ("Random", {"seed": 3}, "tuners.Mine"),
        "assessor": ("Medianstop", {"start_step": 2}, "assessors.Mine"),
        "trialScheduler": ("ASHA", {"max_t": 27}, "schedulers.Mine"),
    }
    for kind, (name, class_args, class_name) in arguments.items():
        yield from _honored(
            ALGORITHMS,
            {
                f"{kind}.name": name,
                f"{kind}.classArgs": class_args,
                f"{kind}.className": class_name,
                f"{kind}.codeDirectory": "code",
            },
        )
    yield from _honored(ALGORITHMS, {"tuner.includeIntermediateResults": True})


def _services() -> Iterator[Key]:
    yield from _honored(
        SERVICE,
        {
            "trainingService.platform": "local",
            "trainingService.trialCommand": "python other.py",
            "trainingService.trialCodeDirectory": "code",
            "trainingService.trialGpuNumber": 0,
            "trainingService.debug": True,
        },
    )
    yield Key(SERVICE, "trainingService.nniManagerIp", Treatment.NOTICE, "10.0.0.1", _NO_MANAGER_ADDRESS)
    yield Key(
        SERVICE,
        "trainingService.reuseMode",
        Treatment.NOTICE,
        True,
        "has no effect: there is one way to run trials, and machines are always reused",
    )
    sharing: dict[str, object] = {"useActiveGpu": True, "maxTrialNumberPerGpu": 2, "gpuIndices": [0, 2]}
    yield from _honored(LOCAL, {f"trainingService.{key}": value for key, value in sharing.items()}, "local")
    yield from _remote(sharing)
    yield from _kubernetes()
    for platform in PLATFORMS.values():
        for key in platform.keys:
            yield Key(
                OTHER_PLATFORMS,
                f"trainingService.{key}",
                Treatment.REFUSED,
                "value",
                platform=platform.name,
            )


def _remote(sharing: dict[str, object]) -> Iterator[Key]:
    service: dict[str, object] = {
        "machineList": [{"host": "gpu-1", "user": "somebody"}],
        "nodeTimeout": "20m",
        "placement": "pack",
        "quarantineAfter": 5,
        "keepAliveInterval": "30s",
        "code": {"pathOnNode": "/srv/code"},
        "code.pathOnNode": "/srv/digits",
        "collectLimitMb": 10,
    }
    machine: dict[str, object] = {
        "host": "gpu-2",
        "port": 2222,
        "user": "somebody",
        "password": "secret",
        "passwordEnv": "GPU_PASSWORD",
        "passwordPrompt": True,
        "sshKeyFile": "id_key",
        "sshPassphrase": "secret",
        "sshPassphraseEnv": "GPU_PASSPHRASE",
        "sshPassphrasePrompt": True,
        **sharing,
        "pythonPath": "/opt/python/bin",
        "trustOnFirstUse": True,
    }
    yield from _honored(REMOTE, {f"trainingService.{key}": value for key, value in service.items()}, "remote")
    machine_keys = {f"trainingService.machineList[].{key}": value for key, value in machine.items()}
    yield from _honored(REMOTE, machine_keys, "remote")


def _kubernetes() -> Iterator[Key]:
    service: dict[str, object] = {
        "image": "images.example.org/digits:3",
        "namespace": "ml",
        "context": "cluster-2",
        "kubeconfig": "kubeconfig.yml",
        "managerUrl": "https://10.0.0.5:8443",
        "cpuNumber": 4,
        "memorySize": "16Gi",
        "ephemeralStorage": "20Gi",
        "sharedMemory": "2Gi",
        "gpuResource": "amd.com/gpu",
        "nodeSelector": {"pool": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "serviceAccount": "trials",
        "runAsUser": 10001,
        "fsGroup": 10001,
        "imagePullSecrets": ["registry"],
        "imagePullPolicy": "Always",
        "priorityClass": "low",
        "schedulerName": "volcano",
        "labels": {"kueue.x-k8s.io/queue-name": "ml"},
        "annotations": {"team": "vision"},
        "mounts": [{"path": "/data", "claim": "datasets"}],
        "environment": {"HF_HOME": "/data/huggingface"},
        "environmentSecrets": ["wandb"],
        "python": "python3.12",
        "podTemplate": {"spec": {"runtimeClassName": "nvidia"}},
        "pendingTimeout": "2h",
        "nodeTimeout": "20m",
        "terminationGracePeriod": "2m",
        "lingerSeconds": "30m",
        "collectLimitMb": 10,
        "checkpointLimitMb": 50_000,
    }
    mount: dict[str, object] = {
        "path": "/models",
        "claim": "models",
        "secret": "keys",
        "configMap": "lists",
        "subPath": "v2",
        "readOnly": True,
    }
    yield from _honored(KUBERNETES, {f"trainingService.{key}": value for key, value in service.items()}, "kubernetes")
    keys = {f"trainingService.mounts[].{key}": value for key, value in mount.items()}
    yield from _honored(KUBERNETES, keys, "kubernetes")


def _storage() -> Iterator[Key]:
    examples = {
        "storageType": "NFS",
        "nfsServer": "files",
        "exportedDirectory": "/export",
        "storageAccountName": "account",
        "storageAccountKey": "secret",
        "containerName": "container",
        "localMountPoint": "/mnt/a",
        "remoteMountPoint": "/mnt/b",
        "localMounted": "usermount",
    }
    for key, example in examples.items():
        yield Key(STORAGE, f"sharedStorage.{key}", Treatment.REFUSED, example, "see sharedStorage above", stays=True)


KEYS: tuple[Key, ...] = (
    *_experiment(),
    *_algorithms(),
    *_services(),
    *_storage(),
    *_honored(
        ADDITIONS,
        {
            "objective": {"direction": "minimize"},
            "objective.metric": "default",
            "objective.direction": "minimize",
        },
    ),
    _LIST_OF_OBJECTIVES,
    *_honored(
        ADDITIONS,
        {
            "trialScheduler": {"name": "ASHA"},
            "maxTrialRetries": 2,
            "maxInfrastructureRetries": 9,
            "retryExitCodes": [75],
            "maxFailedTrials": 20,
            "maxGpuHours": 100,
            "priority": 5,
            "preemptible": True,
            "reportFrom": 3,
            "codeSnapshot": True,
            "seed": 17,
            "keepCheckpoints": {"newest": 3, "best": 2},
            "keepCheckpoints.newest": "all",
            "keepCheckpoints.best": 0,
            "checkpointQuotaMb": 50_000,
            "copyCheckpoints": False,
            "checkpointStorage": "/mnt/checkpoints",
            "checkpointStorage.location": "s3://bucket/folder",
            "checkpointStorage.environment": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            "saveSeconds": "2m",
            "verdictTimeout": "30m",
            "leaseSeconds": 600,
        },
    ),
)


# ---- applying the table ----------------------------------------------------------------------------------------------

_PATHS = frozenset(
    "".join(f"{folded(part)}." for part in path.replace("[]", "").split("."))
    for path in (
        *(row.path for row in KEYS),
        *OPERATOR_PATHS,
        *(old.path for old in OLD_KEYS),
        *(f"{kind}.{OLD_CLASS_FILE}" for kind in ("tuner", "assessor", "advisor")),
        *(f"trainingService.machineList.{name}" for name in OLD_MACHINE_KEYS),
        *(f"machineList.{name}" for name in OLD_MACHINE_KEYS),
    )
)
"""Every key of either format, folded, with a dot after each part."""
_SECTIONS = frozenset(path[: path.rindex(".", 0, -1) + 1] for path in _PATHS if path.count(".") > 1)


def without_nulls(node: TreeNode, path: str = "") -> TreeNode:
    """The tree less the known keys without a value: they are taken as not given, as in NNI.

    This comes before every step that looks whether a key is there. Unknown keys stay, to be reported.
    """
    if isinstance(node.value, tuple):
        return replace(node, value=tuple(without_nulls(item, path) for item in node.items))
    kept = {}
    for name, member in node.members.items():
        its_path = f"{path}{folded(name)}."
        if its_path in _SECTIONS:
            member = replace(member, node=without_nulls(member.node, its_path))
        if member.node.value is not None or its_path not in _PATHS:
            kept[name] = member
    return replace(node, value=kept) if isinstance(node.value, dict) else node


def apply_treatments(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree less the keys that are refused or have no effect; those are reported with their sentence."""
    for row in KEYS:
        if row.treatment is Treatment.HONORED or row.platform is not None or row.path == "advisor":
            continue
        parent, _, name = row.path.rpartition(".")
        if parent.startswith("sharedStorage"):
            continue  # the section is refused as a whole
        root = _apply(row, root, parent, name, report)
    return root


def advisor_as_tuner(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree with `advisor`, where there is one, in the place of `tuner`."""
    advisor = root.get("advisor")
    if advisor is None:
        return root
    row = next(row for row in KEYS if row.path == "advisor")
    if root.get("tuner") is not None:
        report.problem(
            advisor.place,
            advisor.node.path,
            expected="either tuner or advisor",
            found="both",
            message="remove advisor",
        )
    else:
        report.notice(advisor.place, advisor.node.path, row.sentence)
        root = root.with_member("tuner", advisor)
    return root.without("advisor")


def _apply(row: Key, root: TreeNode, parent: str, name: str, report: ConfigReport) -> TreeNode:
    holder = root
    if parent:
        section = root.get(parent)
        if section is None:
            return root
        holder = section.node
    member = holder.get(name)
    if member is None or not _applies(row, member):
        return root
    if row.treatment is Treatment.NOTICE:
        report.notice(member.place, member.node.path, row.sentence)
    else:
        found = describe(plain(member.node))
        report.problem(member.place, member.node.path, expected=row.expected, found=found, message=row.sentence)
    if row.stays:
        return root
    if not parent:
        return root.without(name)
    if parent == "advisor":
        return root.without(parent)  # what is left of a refused advisor is no tuner
    outer = next(key for key in root.members if folded(key) == folded(parent))
    return root.with_value(outer, holder.without(name))


def _applies(row: Key, member: Member) -> bool:
    if row.value is ANY:
        return True
    value = member.node.value
    if isinstance(row.value, str):
        return isinstance(value, str) and value.lower() == row.value.lower()
    return as_truth(value) is row.value


def as_truth(value: object) -> object:
    """A boolean from the words YAML 1.1 has for it; any other value as it is."""
    return BOOLEAN_WORDS.get(value.lower(), value) if isinstance(value, str) else value
