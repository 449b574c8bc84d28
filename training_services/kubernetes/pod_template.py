"""Merging the user's `podTemplate` into our pod, as `kubectl patch` applies a strategic merge patch: mappings are
merged, null removes a key, lists of named things are merged by name, other lists are replaced.

The merge keys are those of the Kubernetes API (`patchMergeKey` in its types); lists without one are replaced.
Directives (`$patch`, `$retainKeys`, `$setElementOrder`) are refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "KEEPER_ROOT",
    "POD_UID",
    "SHARED_MEMORY_FOLDER",
    "TRIAL_CONTAINER",
    "find_conflicts",
    "lines_of_trial_container",
    "merge",
]

KEEPER_ROOT = "/proctor"
"""The folder below which the keeper has its files."""
OUR_NAMES = "proctor-"
"""The prefix of our volumes' names."""
POD_UID = "POD_UID"
"""The environment variable that holds the pod's uid."""
SHARED_MEMORY_FOLDER = "/dev/shm"
TRIAL_CONTAINER = "trial"
"""The name of the container in which trials run, also of one that has no name in `podTemplate`."""
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_OURS_OF_POD = {
    "restartPolicy": "a trial job has one pod; its manager tries again by maxTrialRetries",
    "activeDeadlineSeconds": "it counts the time that a pod waits; use maxTrialDuration",
    "terminationGracePeriodSeconds": "use terminationGracePeriod",
}
_OURS_OF_CONTAINER = {
    "command": "the container runs the trial's keeper; use trialCommand",
    "args": "the container runs the trial's keeper; use trialCommand",
    "image": "use image",
    "terminationMessagePath": "the keeper writes there",
    "terminationMessagePolicy": "the keeper writes there",
}


def merge(ours: Any, theirs: Any, *, key: str = "") -> Any:
    """Merge `theirs` into a copy of `ours`.

    :param key: the key of both in their parents.
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = dict(ours)
        for name, value in theirs.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(merged.get(name), value, key=name)
        return merged
    if isinstance(theirs, Mapping):  # there is nothing to merge into, but it may hold nulls
        return merge({}, theirs)
    if isinstance(theirs, list):
        return _merge_lists(ours if isinstance(ours, list) else [], theirs, key)
    return theirs


def _merge_lists(ours: list[Any], theirs: list[Any], key: str) -> list[Any]:
    named = _MERGE_KEYS.get(key)
    if named is None or not all(isinstance(item, Mapping) for item in theirs):
        return [merge(None, item) for item in theirs]
    merged = list(ours)
    for item in theirs:
        found = {**item, "name": TRIAL_CONTAINER} if key == "containers" and "name" not in item else item
        places = [index for index, other in enumerate(merged) if other.get(named) == found.get(named)]
        if places:
            merged[places[0]] = merge(merged[places[0]], found)
        else:
            merged.append(merge(None, found))
    return merged


def lines_of_trial_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The lines of a `podTemplate` that are about the container in which trials run."""
    spec = template.get("spec")
    containers = _mappings(spec.get("containers") if isinstance(spec, Mapping) else None)
    return next((each for _, each in containers if each.get("name", TRIAL_CONTAINER) == TRIAL_CONTAINER), {})


def find_conflicts(template: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """The parts of a `podTemplate` that conflict with how trials run, each as a path and an explanation."""
    found: list[tuple[tuple[str | int, ...], str]] = list(_directives(template, ()))
    for key in sorted(key for key in template.keys() - {"metadata", "spec"} if not _is_directive(key)):
        found.append(((key,), "expected metadata and spec, as in the template of a Job"))
    for part in ("metadata", "spec"):
        if not isinstance(template.get(part, {}), Mapping):
            found.append(((part,), "expected a mapping"))
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return found
    found += [(("spec", key), why) for key, why in _OURS_OF_POD.items() if key in spec]
    for key in ("tolerations", "volumes"):
        items = spec.get(key) or []
        if not isinstance(items, list) or len(_mappings(items)) < len(items):
            found.append((("spec", key), "expected a list of mappings"))
    volumes = _mappings(spec.get("volumes"))
    found += [
        (("spec", "volumes", index), f"names that begin with {OUR_NAMES} are the keeper's; choose another name")
        for index, volume in volumes
        if str(volume.get("name", "")).startswith(OUR_NAMES)
    ]
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(each, Mapping) for each in containers):
        return [*found, (("spec", "containers"), "expected a list of mappings")]
    for index, container in enumerate(containers):
        if container.get("name", TRIAL_CONTAINER) == TRIAL_CONTAINER:
            place = ("spec", "containers", index)
            found += [((*place, key), why) for key, why in _OURS_OF_CONTAINER.items() if key in container]
            found += [((*place, *where), why) for where, why in _conflicts_of_container(container)]
    return found


def _conflicts_of_container(container: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for index, mount in _mappings(container.get("volumeMounts")):
        path = str(mount.get("mountPath", ""))
        if f"{path}/".startswith(f"{KEEPER_ROOT}/"):
            yield ("volumeMounts", index), f"what the keeper needs is in {KEEPER_ROOT}; choose another mountPath"
    for index, variable in _mappings(container.get("env")):
        if variable.get("name") == POD_UID:
            yield ("env", index), f"the keeper needs {POD_UID} as it is; choose another name"


def _directives(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The directives of a strategic merge patch in it."""
    for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
        if _is_directive(key):
            yield (*place, key), "directives of a merge patch are not supported; null removes a key"
        elif isinstance(below, Mapping | list):
            yield from _directives(below, (*place, key))


def _is_directive(key: object) -> bool:
    return isinstance(key, str) and key.startswith("$")


def _mappings(found: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """The mappings in what should be a list of mappings, with their paths."""
    items = found if isinstance(found, list) else []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Mapping)]
