"""The `trainingService` and `sharedStorage` sections, one model for each kind."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from proctor.manager.config.fields import (
    AbsolutePath,
    Count,
    GpuIndices,
    LoginName,
    NodePath,
    PortNumber,
    Positive,
    Seconds,
    Text,
    Truth,
    unexpected,
)
from proctor.manager.config.key_names import camel_case
from proctor.manager.config.platforms import PLATFORMS

SECRET = {"writeOnly": True}
"""Marks a field whose value is kept apart from the configuration (see `secrets.py`)."""


class Section(BaseModel):
    """A part of the configuration: snake_case in Python and in the database, camelCase in YAML."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=camel_case,
        populate_by_name=True,
        use_attribute_docstrings=True,
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
    return platform if platform in ("local", "remote") else "plug_in"


TrainingServiceConfig = Annotated[
    Annotated[LocalConfig, Tag("local")]
    | Annotated[RemoteConfig, Tag("remote")]
    | Annotated[PlugInConfig, Tag("plug_in")],
    Discriminator(_service_kind),
]
SharedStorageConfig = NfsStorage | AzureBlobStorage
