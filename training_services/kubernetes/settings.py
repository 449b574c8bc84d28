"""The settings of platform `kubernetes`: the `trainingService` section."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["KubernetesSettings", "Mount"]


@dataclass(frozen=True)
class Mount:
    """A folder in which trials see a claim, a Secret or a ConfigMap; exactly one of the three is given."""

    path: str
    claim: str | None = None
    secret: str | None = None
    config_map: str | None = None
    sub_path: str | None = None
    read_only: bool = False


@dataclass(frozen=True)
class KubernetesSettings:
    """The `trainingService` section; `manager/config/services.py` documents its keys."""

    image: str
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    manager_url: str | None = None
    cpu_number: float | None = None
    memory_size: str | None = None
    ephemeral_storage: str | None = None
    shared_memory: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    service_account: str | None = None
    run_as_user: int | None = None
    fs_group: int | None = None
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str | None = None
    priority_class: str | None = None
    scheduler_name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_secrets: tuple[str, ...] = ()
    python: str = "python3"
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    pending_timeout_seconds: float | None = None
    node_timeout_seconds: float = 300.0
    termination_grace_seconds: float = 60.0
    linger_seconds: float = 600.0
    collect_limit_mb: int = 100
    checkpoint_limit_mb: int = 10_000

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> "KubernetesSettings":
        """Read them from that section of the canonical configuration."""
        known = {item.name for item in fields(cls)}
        chosen = {key: value for key, value in settings.items() if key in known and value is not None}
        for key in ("tolerations", "image_pull_secrets", "environment_secrets"):
            chosen[key] = tuple(chosen.get(key, ()))
        chosen["mounts"] = tuple(Mount(**mount) for mount in chosen.get("mounts", ()))
        return cls(**chosen)
