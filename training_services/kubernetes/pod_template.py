"""The user's own lines of the pod (`podTemplate`), laid over ours as `kubectl patch` lays a strategic merge patch over
an object: mappings are merged, null removes, lists of named things are merged by name, other lists are replaced.

The merge keys are those of the Kubernetes API (`patchMergeKey` in its types); a list that has none there is replaced.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["TRIAL_CONTAINER", "find_conflicts", "merge"]

TRIAL_CONTAINER = "trial"
"""The name of the container that trials run in; one without a name in the user's lines is this one."""
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
    """Ours with theirs laid over it. Neither is changed.

    :param key: under which both stand.
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = dict(ours)
        for name, value in theirs.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(merged.get(name), value, key=name)
        return merged
    if isinstance(theirs, Mapping):  # nothing is below it, but it may hold nulls
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


def find_conflicts(template: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """What of a `podTemplate` would keep a trial from running as it should, each as its path in it and a sentence."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    for key in sorted(template.keys() - {"metadata", "spec"}):
        found.append(((key,), "expected metadata and spec, as in the template of a Job"))
    for part in ("metadata", "spec"):
        if not isinstance(template.get(part, {}), Mapping):
            found.append(((part,), "expected a mapping"))
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return found
    found += [(("spec", key), why) for key, why in _OURS_OF_POD.items() if key in spec]
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(each, Mapping) for each in containers):
        return [*found, (("spec", "containers"), "expected a list of mappings")]
    for index, container in enumerate(containers):
        if container.get("name", TRIAL_CONTAINER) == TRIAL_CONTAINER:
            place = ("spec", "containers", index)
            found += [((*place, key), why) for key, why in _OURS_OF_CONTAINER.items() if key in container]
    return found
