"""The section of platform kubernetes."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from proctor.manager.config.errors import ConfigProblem
from proctor.manager.config.services import KubernetesConfig
from proctor.training_services.job_keepers.files import CHECKPOINT_LIMIT_BYTES, COLLECT_LIMIT_BYTES
from proctor.training_services.kubernetes.settings import KubernetesSettings


def test_the_platform_has_the_defaults_of_the_section() -> None:
    section = KubernetesConfig(platform="kubernetes", image="i").model_dump()
    settings = KubernetesSettings.read({"image": "i"})
    assert asdict(settings) == asdict(KubernetesSettings.read(section))
    assert (settings.collect_limit_mb * 10**6, settings.checkpoint_limit_mb * 10**6) == (
        COLLECT_LIMIT_BYTES,
        CHECKPOINT_LIMIT_BYTES,
    )


def test_every_line_of_a_template_that_is_not_the_users_is_reported_where_it_stands(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str
) -> None:
    keys = "\n".join(
        [
            "trainingService:",
            "  platform: kubernetes",
            "  image: i",
            "  podTemplate:",
            "    spec:",
            "      restartPolicy: Always",
            "      containers:",
            "        - image: other",
        ]
    )
    lines = (small[: small.index("trainingService")] + keys).splitlines()
    found = problems("\n".join(lines) + "\n")
    assert {key: lines[problem.line - 1].strip() for key, problem in found.items() if problem.line} == {
        "trainingService.podTemplate.spec.restartPolicy": "restartPolicy: Always",
        "trainingService.podTemplate.spec.containers[0].image": "- image: other",
    }


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("lingerSeconds", 5, "a duration of at least 15 s, such as 60 or 10m"),  # several heartbeats
        ("terminationGracePeriod", 0.4, "a duration of at least 1 s, such as 60 or 2m"),  # rounded, it would be 0
    ],
)
def test_a_duration_that_is_too_short_for_a_pod_is_refused(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str, key: str, value: float, expected: str
) -> None:
    keys = f"trainingService:\n  platform: kubernetes\n  image: i\n  {key}: {value}\n"
    found = problems(small[: small.index("trainingService")] + keys)
    assert found[f"trainingService.{key}"].expected == expected


@pytest.mark.parametrize(
    ("keys", "place", "expected"),
    [
        ("environment: {A-B: x}", "environment", "names of environment variables, as in HF_HOME"),
        ("environment: {POD_UID: x}", "environment", "names other than POD_UID and PROCTOR_…, which are Proctor's own"),
        (
            "environment: {PROCTOR_HOME: x}",
            "environment",
            "names other than POD_UID and PROCTOR_…, which are Proctor's own",
        ),
        ("runAsUser: 0", "runAsUser", "at least 1"),
        ("fsGroup: 2147483648", "fsGroup", "at most 2147483647"),
        ("sharedMemory: much", "sharedMemory", "an amount of memory, such as 16Gi or 512Mi"),
    ],
)
def test_what_a_pod_cannot_have_is_refused(
    problems: Callable[[str], dict[str, ConfigProblem]], small: str, keys: str, place: str, expected: str
) -> None:
    section = f"trainingService:\n  platform: kubernetes\n  image: i\n  {keys}\n"
    found = problems(small[: small.index("trainingService")] + section)
    assert found[f"trainingService.{place}"].expected == expected


def test_shared_memory_is_given_once(problems: Callable[[str], dict[str, ConfigProblem]], small: str) -> None:
    mounts = "mounts: [{path: /dev/shm, claim: c}]"
    section = f"trainingService:\n  platform: kubernetes\n  image: i\n  sharedMemory: 1Gi\n  {mounts}\n"
    found = problems(small[: small.index("trainingService")] + section)
    assert found["trainingService"].expected == "sharedMemory or a mount at /dev/shm"
