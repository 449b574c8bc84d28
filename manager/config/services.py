"""The `trainingService` and `sharedStorage` sections, one model for each kind."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from proctor.manager.config.names import camel_case
from proctor.manager.config.quantities import (
    AbsolutePath,
    GpuIndices,
    PortNumber,
    Positive,
    Text,
    Truth,
)

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
    """Use GPUs on which processes of others run; own trials never count."""
    max_trial_number_per_gpu: Positive = 1
    """How many trials may share one GPU."""
    gpu_indices: GpuIndices | None = None
    """The GPUs trials may use; all if not given."""


class RemoteMachineConfig(Section):
    """One machine of platform remote, reached over SSH."""

    host: Text
    """Name or address of the machine."""
    port: PortNumber = 22
    """Port of its SSH server."""
    user: Text
    """Whom to log in as."""
    password: Annotated[Text | None, Field(json_schema_extra=SECRET)] = None
    """Password; a key file is better, as it stays out of the configuration."""
    ssh_key_file: AbsolutePath = Field(default_factory=lambda: Path("~/.ssh/id_rsa").expanduser())
    """Private key; used where there is no password."""
    ssh_passphrase: Annotated[Text | None, Field(json_schema_extra=SECRET)] = None
    """Passphrase of the private key."""
    use_active_gpu: Truth = False
    """Use GPUs on which processes of others run; own trials never count."""
    max_trial_number_per_gpu: Positive = 1
    """How many trials may share one GPU."""
    gpu_indices: GpuIndices | None = None
    """The GPUs trials may use; all if not given."""
    python_path: Text | None = None
    """A directory of that machine to put first on PATH."""


class RemoteConfig(Section):
    """Trials run on other machines, reached over SSH."""

    platform: Literal["remote"]
    """Where trials run."""
    machine_list: Annotated[tuple[RemoteMachineConfig, ...], Field(min_length=1)]
    """The machines."""


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


TrainingServiceConfig = LocalConfig | RemoteConfig
SharedStorageConfig = NfsStorage | AzureBlobStorage
