"""Pod Security at level `restricted`, as far as what Proctor's pods and users' templates hold can violate it."""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(spec: dict[str, Any], level: str) -> str:
    """What is wrong with a pod, in the words of the API server; "" if nothing."""
    return ", ".join(_find(spec)) if level == "restricted" else ""


def _find(spec: dict[str, Any]) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    for container in containers:
        own, name = container.get("securityContext") or {}, container["name"]
        if own.get("allowPrivilegeEscalation") is not False:
            allow = "securityContext.allowPrivilegeEscalation=false"
            yield f'allowPrivilegeEscalation != false (container "{name}" must set {allow})'
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or ()):
            yield f'unrestricted capabilities (container "{name}" must set securityContext.capabilities.drop=["ALL"])'
        if {**pod, **own}.get("runAsNonRoot") is not True:
            yield f'runAsNonRoot != true (pod or container "{name}" must set securityContext.runAsNonRoot=true)'
        if {**pod, **own}.get("runAsUser") == 0:
            yield f'runAsUser=0 (pod or container "{name}" must not set runAsUser=0)'
        profile = {**pod, **own}.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            wanted = 'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
            yield f'seccompProfile (pod or container "{name}" must set {wanted})'
    for volume in spec.get("volumes", ()):
        if not _VOLUMES & volume.keys():
            yield f'restricted volume types (volume "{volume["name"]}" uses restricted volume type)'
