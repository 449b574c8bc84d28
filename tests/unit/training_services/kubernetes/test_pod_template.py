"""The user's lines of a pod are laid over ours as the API server does it, and may not take the keeper away."""

from typing import Any

import pytest

from proctor.training_services.kubernetes.pod_template import find_conflicts, merge

OURS: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [{"name": "trial", "image": "i", "env": [{"name": "A", "value": "1"}], "command": ["x"]}],
        "volumes": [{"name": "work", "emptyDir": {}}],
        "tolerations": [{"key": "ours"}],
    },
}


@pytest.mark.parametrize(
    ("theirs", "path", "merged"),
    [
        ({"metadata": {"labels": {"b": "2"}}}, ("metadata", "labels"), {"a": "1", "b": "2"}),
        ({"metadata": {"labels": {"a": None}}}, ("metadata", "labels"), {}),
        ({"spec": {"hostIPC": True}}, ("spec", "hostIPC"), True),
        ({"spec": {"tolerations": [{"key": "theirs"}]}}, ("spec", "tolerations"), [{"key": "theirs"}]),
        (
            {"spec": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}},
            ("spec", "volumes"),
            [{"name": "work", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        ),
        (
            {"spec": {"containers": [{"env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}]}},
            ("spec", "containers", 0, "env"),
            [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
        ),
        (
            {"spec": {"containers": [{"name": "sidecar", "image": "s", "args": None}]}},
            ("spec", "containers", 1),
            {"name": "sidecar", "image": "s"},
        ),
    ],
)
def test_lines_are_merged_as_a_strategic_merge_patch(
    theirs: dict[str, Any], path: tuple[str | int, ...], merged: object
) -> None:
    found: Any = merge(OURS, theirs)
    for key in path:
        found = found[key]
    assert found == merged


def test_nothing_is_changed_in_place() -> None:
    before = repr(OURS)
    merge(OURS, {"spec": {"containers": [{"env": []}], "volumes": [{"name": "work", "emptyDir": None}]}})
    assert repr(OURS) == before


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"restartPolicy": "Always"}}, ("spec", "restartPolicy")),
        ({"spec": {"activeDeadlineSeconds": 60}}, ("spec", "activeDeadlineSeconds")),
        ({"spec": {"containers": [{"command": ["sh"]}]}}, ("spec", "containers", 0, "command")),
        (
            {"spec": {"containers": [{"name": "a", "args": []}, {"name": "trial", "args": []}]}},
            ("spec", "containers", 1, "args"),
        ),
        ({"spec": {"containers": "trial"}}, ("spec", "containers")),
        ({"containers": []}, ("containers",)),
        ({"spec": 3}, ("spec",)),
        (
            {"spec": {"containers": [{"env": [{"$patch": "delete", "name": "A"}]}]}},
            ("spec", "containers", 0, "env", 0, "$patch"),
        ),
        ({"$retainKeys": []}, ("$retainKeys",)),
        ({"spec": {"tolerations": ["gpu"]}}, ("spec", "tolerations")),
        ({"spec": {"volumes": [{"name": "mine"}, {"name": "proctor-work"}]}}, ("spec", "volumes", 1)),
        (
            {"spec": {"containers": [{"volumeMounts": [{"name": "a", "mountPath": "/proctor/work"}]}]}},
            ("spec", "containers", 0, "volumeMounts", 0),
        ),
        ({"spec": {"containers": [{"env": [{"name": "POD_UID", "value": "1"}]}]}}, ("spec", "containers", 0, "env", 0)),
    ],
)
def test_what_would_keep_a_trial_from_running_is_found(template: dict[str, Any], path: tuple[str | int, ...]) -> None:
    assert [place for place, _ in find_conflicts(template)] == [path]


def test_a_template_with_resources_and_a_sidecar_is_fine() -> None:
    containers = [{"resources": {"limits": {"rdma/hca": 1}}}, {"name": "sidecar", "command": ["sh"], "image": "s"}]
    assert find_conflicts({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}) == []
