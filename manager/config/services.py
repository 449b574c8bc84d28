"""The `trainingService` and `sharedStorage` sections, one model for each kind."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from proctor.manager.config.fields import (
    AbsolutePath,
    Amount,
    AnyMapping,
    Count,
    GpuIndices,
    LoginName,
    ManagerUrl,
    MemorySize,
    NodePath,
    ObjectName,
    PortNumber,
    Positive,
    Seconds,
    Text,
    TextMapping,
    Truth,
    UserNumber,
    unexpected,
)
from proctor.manager.config.key_names import camel_case
from proctor.manager.config.platforms import PLATFORMS
from proctor.manager.field_docs import DescribedFields
from proctor.training_services.kubernetes.pod_template import POD_UID, SHARED_MEMORY_FOLDER, find_conflicts

SECRET = {"writeOnly": True}
"""Marks a field whose value is kept apart from the configuration (see `secrets.py`)."""
LEAST_LINGER_SECONDS = 15.0
"""Three heartbeats of a keeper."""


class Section(DescribedFields, BaseModel):
    """A part of the configuration: snake_case in Python and in the database, camelCase in YAML."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=camel_case,
        populate_by_name=True,
        allow_inf_nan=True,
    )


class LocalConfig(Section):
    """Trials run on the machine of the manager."""

    platform: Literal["local"]
    """Where trials run."""
    use_active_gpu: Truth = False
    """Use GPUs that other processes are using; Proctor's own trials never count."""
    max_trial_number_per_gpu: Positive = 1
    """How many trials may share one GPU."""
    gpu_indices: GpuIndices | None = None
    """The GPUs trials may use; all if not given."""


class RemoteMachineConfig(Section):
    """One machine of platform remote, reached over SSH. What is not given comes from ~/.ssh/config, then from SSH's own
    defaults."""

    host: LoginName
    """Name or address of the machine, or a Host of ~/.ssh/config."""
    port: PortNumber | None = None
    """Port of its SSH server; that of ~/.ssh/config, else 22, if not given."""
    user: LoginName | None = None
    """User to log in as; the user of ~/.ssh/config, else your own name, if not given."""
    password: Annotated[Text | None, Field(json_schema_extra=SECRET)] = None
    """Password; a key file or the agent is better, as it stays out of the configuration."""
    password_env: Text | None = None
    """Environment variable that holds the password when the experiment is created."""
    password_prompt: Truth = False
    """Ask for the password once, when the experiment is created."""
    ssh_key_file: AbsolutePath | None = None
    """Private key; those of ~/.ssh/config, the agent and SSH's defaults if not given."""
    ssh_passphrase: Annotated[Text | None, Field(json_schema_extra=SECRET)] = None
    """Passphrase of the private key."""
    ssh_passphrase_env: Text | None = None
    """Environment variable that holds the passphrase when the experiment is created."""
    ssh_passphrase_prompt: Truth = False
    """Ask for the passphrase once, when the experiment is created."""
    use_active_gpu: Truth = False
    """Use GPUs that other processes are using; Proctor's own trials never count."""
    max_trial_number_per_gpu: Positive = 1
    """How many trials may share one GPU."""
    gpu_indices: GpuIndices | None = None
    """The GPUs trials may use; all if not given."""
    python_path: Text | None = None
    """A directory of that machine to put first on PATH."""
    trust_on_first_use: Truth = False
    """Accept and remember the host key of an unknown machine instead of refusing it."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum((self.password is not None, self.password_env is not None, self.password_prompt)) > 1:
            raise unexpected("one of password, passwordEnv and passwordPrompt")
        if sum((self.ssh_passphrase is not None, self.ssh_passphrase_env is not None, self.ssh_passphrase_prompt)) > 1:
            raise unexpected("one of sshPassphrase, sshPassphraseEnv and sshPassphrasePrompt")
        return self

    @property
    def address(self) -> str:
        """What makes it this machine and no other: [user@]host[:port], as written."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")


class NodeCodeConfig(Section):
    """Where the trial code comes from on machines of platform remote."""

    path_on_node: NodePath
    """Folder with the trial code on every machine: nothing is copied, trialCommand runs there."""


class RemoteConfig(Section):
    """Trials run on other machines, reached over SSH."""

    platform: Literal["remote"]
    """Where trials run."""
    machine_list: Annotated[tuple[RemoteMachineConfig, ...], Field(min_length=1)]
    """The machines."""
    node_timeout_seconds: Annotated[Seconds, Field(alias="nodeTimeout")] = 600.0
    """A machine that is unreachable for longer loses its trials, which then run elsewhere: seconds, or 10m, 1.5h."""
    placement: Literal["spread", "pack"] = "spread"
    """Which machine gets the next trial: the least loaded one, or the fullest one that has room."""
    quarantine_after: Count = 3
    """After this many failed trials in a row, while trials succeed elsewhere, a machine gets no more; 0: never."""
    keep_alive_seconds: Annotated[Seconds, Field(alias="keepAliveInterval")] = 15.0
    """How often a silent connection is tested; it is closed after three tests without an answer."""
    code: NodeCodeConfig | None = None
    """Where the trial code comes from; trialCodeDirectory is copied to the machines if not given."""
    collect_limit_mb: Count = 100
    """Files of a trial up to this size are copied to the manager when it has ended, larger ones at stop."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        seen: dict[str, int] = {}
        repeated: list[InitErrorDetails] = []
        for index, machine in enumerate(self.machine_list):
            first = seen.setdefault(machine.address, index)
            if first != index:
                found = f"{machine.address}, which machineList[{first}] is as well"
                error = unexpected("each machine once", found=found)
                repeated.append(InitErrorDetails(type=error, loc=("machineList", index), input=machine.address))
        if repeated:  # each at its own place, not at the whole section's
            raise ValidationError.from_exception_data(type(self).__name__, repeated)
        return self


class MountConfig(Section):
    """Something of the namespace that trials see as a folder: a claim, a Secret or a ConfigMap."""

    path: NodePath
    """Where trials see it."""
    claim: Text | None = None
    """A PersistentVolumeClaim."""
    secret: Text | None = None
    """A Secret: a file for each of its keys."""
    config_map: Text | None = None
    """A ConfigMap: a file for each of its keys."""
    sub_path: Text | None = None
    """A folder of it instead of all of it."""
    read_only: Truth = False
    """Trials cannot write there."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(each is not None for each in (self.claim, self.secret, self.config_map)) != 1:
            raise unexpected("one of claim, secret and configMap")
        return self


class KubernetesConfig(Section):
    """Trials run as Jobs of a Kubernetes cluster, in one namespace."""

    platform: Literal["kubernetes"]
    """Where trials run."""
    image: Text
    """Container image of the trials; it needs Python 3.10 or later and bash."""
    namespace: ObjectName | None = None
    """Namespace of the trials; that of the context if not given."""
    context: Text | None = None
    """Context of the kubeconfig file; the current one if not given."""
    kubeconfig: AbsolutePath | None = None
    """Kubeconfig file; $KUBECONFIG, ~/.kube/config, or in a cluster the pod's service account if not given."""
    manager_url: ManagerUrl | None = None
    """Where pods reach this manager, which listens by --keeper-listen, such as https://10.0.0.5:8443; if not given, the
    manager reaches the pods through the API server."""
    cpu_number: Amount | None = None
    """CPUs that each trial requests; half a one if not given."""
    memory_size: MemorySize | None = None
    """Memory of each trial, such as 16Gi: its request and its limit; 512Mi are requested if not given."""
    ephemeral_storage: MemorySize | None = None
    """Disk of its node that each trial may fill, such as 20Gi: its request and its limit."""
    shared_memory: MemorySize | None = None
    """Size of /dev/shm, such as 2Gi, which counts as memory of the trial; the cluster's 64 MB if not given."""
    gpu_resource: Text = "nvidia.com/gpu"
    """What the cluster calls the GPUs that trialGpuNumber counts."""
    node_selector: TextMapping = {}
    """Labels of the nodes that trials may run on."""
    tolerations: tuple[AnyMapping, ...] = ()
    """Taints of nodes that trials tolerate."""
    service_account: ObjectName | None = None
    """Service account of the trials; without one they have no token of the cluster."""
    run_as_user: UserNumber | None = None
    """Number of the user that trials run as, without capabilities and never as root; that of the image if not given."""
    fs_group: UserNumber | None = None
    """Number of the group that owns the volumes of trials."""
    image_pull_secrets: tuple[ObjectName, ...] = ()
    """Secrets for the registry of the image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; the cluster's default if not given."""
    priority_class: ObjectName | None = None
    """Priority class of the pods."""
    scheduler_name: Text | None = None
    """Scheduler of the pods, such as volcano; the cluster's default if not given."""
    labels: TextMapping = {}
    """Labels of Jobs and pods, such as kueue.x-k8s.io/queue-name."""
    annotations: TextMapping = {}
    """Annotations of Jobs and pods."""
    mounts: tuple[MountConfig, ...] = ()
    """Claims, Secrets and ConfigMaps that trials see as folders."""
    environment: TextMapping = {}
    """Environment variables of trials."""
    environment_secrets: tuple[ObjectName, ...] = ()
    """Secrets whose keys are environment variables of trials."""
    python: Text = "python3"
    """The image's Python that runs the keeper of a trial."""
    pod_template: AnyMapping = {}
    """Lines of the pod's template, laid over Proctor's own as a strategic merge patch."""
    pending_timeout_seconds: Annotated[Seconds | None, Field(alias="pendingTimeout")] = None
    """A trial that waits longer for its pod to run fails: seconds, or 10m, 1.5h; without a limit if not given."""
    node_timeout_seconds: Annotated[Seconds, Field(alias="nodeTimeout")] = 300.0
    """A node that is away for longer loses its trials, which then run elsewhere: seconds, or 10m, 1.5h."""
    termination_grace_seconds: Annotated[Seconds, Field(alias="terminationGracePeriod")] = 60.0
    """How long a trial has to save and to end when the cluster takes its pod away."""
    linger_seconds: Seconds = 600.0
    """A pod whose trial has ended waits for a manager for this long, at least 15 s, and then leaves what is not
    delivered in its log and termination message: seconds, or 10m, 1.5h."""
    collect_limit_mb: Count = 100
    """Files of a trial up to this size are copied to the manager when it has ended; larger ones go with the pod."""
    checkpoint_limit_mb: Count = 10_000
    """Checkpoints up to this size are copied to the manager; larger ones go with the pod."""

    @field_validator("linger_seconds")
    @classmethod
    def _outlasts_heartbeats(cls, value: float) -> float:
        if value < LEAST_LINGER_SECONDS:  # a manager that is there may be silent between two heartbeats
            raise unexpected(f"a duration of at least {LEAST_LINGER_SECONDS:g} s, such as 60 or 10m")
        return value

    @field_validator("termination_grace_seconds")
    @classmethod
    def _is_a_time_for_a_pod(cls, value: float) -> float:
        if round(value) < 1:  # the API takes whole seconds, and 0 means: kill it at once
            raise unexpected("a duration of at least 1 s, such as 60 or 2m")
        return value

    @field_validator("environment")
    @classmethod
    def _has_names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                raise unexpected("names of environment variables, as in HF_HOME", found=repr(name))
            if name == POD_UID or name.startswith("PROCTOR_"):
                raise unexpected(f"names other than {POD_UID} and PROCTOR_…, which are Proctor's own", found=name)
        return value

    @model_validator(mode="after")
    def _leaves_the_keeper_alone(self) -> Self:
        conflicts: list[InitErrorDetails] = []
        for path, why in find_conflicts(self.pod_template):
            error = unexpected(f"podTemplate without {'.'.join(map(str, path))} ({why})")
            conflicts.append(InitErrorDetails(type=error, loc=("podTemplate", *path), input=None))
        if conflicts:  # each at its own place, not at the whole section's
            raise ValidationError.from_exception_data(type(self).__name__, conflicts)
        return self

    @model_validator(mode="after")
    def _each_path_once(self) -> Self:
        paths = [mount.path.rstrip("/") for mount in self.mounts]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        ours = next((path for path in paths if path == "/proctor" or path.startswith("/proctor/")), None)
        if twice is not None:
            raise unexpected("each path of mounts once", found=f"{twice} twice")
        if self.shared_memory is not None and SHARED_MEMORY_FOLDER in paths:
            raise unexpected(f"sharedMemory or a mount at {SHARED_MEMORY_FOLDER}", found="both")
        if ours is not None:
            raise unexpected("paths of mounts outside of /proctor, where the keeper is", found=ours)
        return self


class PlugInConfig(Section):
    """Trials run on a platform that an installed package brings. Its other keys are for the package: they reach it in
    snake_case, whatever stands inside of them as it was written."""

    model_config = ConfigDict(extra="allow")

    platform: Annotated[Text, Field(json_schema_extra={"not": {"enum": list(PLATFORMS)}})]
    """The name under which the package has registered it."""


class NfsStorage(Section):
    """A network file system shared by manager and trials."""

    storage_type: Literal["NFS"]
    """Kind of storage."""
    nfs_server: Text
    """Name or address of the NFS server."""
    exported_directory: Text
    """What the server exports."""
    local_mount_point: AbsolutePath
    """Where the manager's machine mounts it."""
    remote_mount_point: Text
    """Where the trials' machines mount it."""
    local_mounted: Literal["usermount", "nnimount", "nomount"]
    """Who mounts it on the manager's machine."""


class AzureBlobStorage(Section):
    """A blob container shared by manager and trials."""

    storage_type: Literal["AzureBlob"]
    """Kind of storage."""
    storage_account_name: Text
    """Account that owns the container."""
    storage_account_key: Annotated[Text | None, Field(json_schema_extra=SECRET)] = None
    """Key of the account."""
    container_name: Text
    """Name of the container."""
    local_mount_point: AbsolutePath
    """Where the manager's machine mounts it."""
    remote_mount_point: Text
    """Where the trials' machines mount it."""
    local_mounted: Literal["usermount", "nnimount", "nomount"]
    """Who mounts it on the manager's machine."""


def _service_kind(section: Any) -> str | None:
    """Which model a `trainingService` section follows, given as a mapping or as a model."""
    platform = section.get("platform") if isinstance(section, dict) else getattr(section, "platform", None)
    if not isinstance(platform, str):
        return None
    return platform if platform in ("local", "remote", "kubernetes") else "plug_in"


TrainingServiceConfig = Annotated[
    Annotated[LocalConfig, Tag("local")]
    | Annotated[RemoteConfig, Tag("remote")]
    | Annotated[KubernetesConfig, Tag("kubernetes")]
    | Annotated[PlugInConfig, Tag("plug_in")],
    Discriminator(_service_kind),
]
SharedStorageConfig = NfsStorage | AzureBlobStorage
