"""NNI's sections for Kubernetes, read as platform kubernetes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from proctor.manager.config.errors import ConfigError, ConfigProblem
from proctor.manager.config.loading import LoadedExperiment, convert_file, load_experiment_mapping
from proctor.manager.config.operators import COUNTS, OPERATOR_PATHS, ROLE_KEYS, SECTION_KEYS, TASK_ROLES, OperatorKey
from proctor.manager.config.services import KubernetesConfig

BEGIN = """\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialConcurrency: 1
tuner: {name: TPE, classArgs: {optimize_mode: maximize}}
"""
KUBEFLOW = f"""{BEGIN}
trainingService:
  platform: kubeflow
  operator: pytorch-operator
  apiVersion: v1
  reuseMode: false
  storage: {{storageType: nfs, server: 10.10.10.10, path: /export}}
  worker:
    replicas: 1
    command: python trial.py
    codeDirectory: code
    dockerImage: images.example.org/digits
    gpuNumber: 2
    cpuNumber: 4
    memorySize: 16 gb
"""
OLD = """\
authorName: default
trialConcurrency: 1
maxTrialNum: 10
searchSpacePath: space.json
trainingServicePlatform: frameworkcontroller
tuner: {builtinTunerName: TPE, classArgs: {optimize_mode: maximize}}
trial:
  codeDir: code
  taskRoles:
  - name: worker
    taskNum: 1
    command: python trial.py
    gpuNum: 2
    cpuNum: 4
    memoryMB: 16384
    image: images.example.org/digits
    frameworkAttemptCompletionPolicy: {minFailedTaskCount: 1, minSucceededTaskCount: 1}
frameworkcontrollerConfig:
  serviceAccountName: trials
  namespace: ml
  storage: nfs
  nfs: {server: 10.10.10.10, path: /export}
"""
EXAMPLES = {
    "command": "python other.py",
    "codeDirectory": "code",
    "dockerImage": "other",
    "gpuNumber": 3,
    "cpuNumber": 3,
    "memorySize": "3Gi",
    "namespace": "ml",
    "serviceAccountName": "other",
    "reuseMode": True,
}
Load = Callable[[str], LoadedExperiment]
Problems = Callable[[str], dict[str, ConfigProblem]]
Refused = Callable[[dict[str, Any]], tuple[ConfigProblem, ...]]


def section(**more: Any) -> dict[str, Any]:
    return {"platform": "kubeflow", "worker": {"dockerImage": "digits", "command": "python trial.py"}, **more}


def read(mapping: dict[str, Any], directory: Path, service: dict[str, Any]) -> LoadedExperiment:
    return load_experiment_mapping({**mapping, "trialCommand": None, "trainingService": service}, directory)


def test_one_worker_of_kubeflow_is_a_trial(load: Load, directory: Path) -> None:
    loaded = load(KUBEFLOW)
    config, service = loaded.config, loaded.config.training_service
    assert isinstance(service, KubernetesConfig)
    assert (service.image, service.cpu_number, service.memory_size) == ("images.example.org/digits", 4, "16Gi")
    assert (config.trial_command, config.trial_gpu_number) == ("python trial.py", 2)
    assert config.trial_code_directory == directory / "code"
    assert service.namespace is None  # that of the context
    [notice] = loaded.notices
    assert (notice.key, notice.place.line) == ("trainingService.platform", 6)
    assert notice.message == (
        "kubeflow is read as kubernetes: each trial is a plain Job. Without effect: trainingService.operator, "
        "trainingService.apiVersion, trainingService.reuseMode, trainingService.storage.storageType, "
        "trainingService.storage.server, trainingService.storage.path; no operator is needed, and code and files "
        "travel over Proctor's own connection"
    )


def test_one_task_of_frameworkcontroller_is_a_trial_also_in_the_first_format(load: Load, directory: Path) -> None:
    loaded = load(OLD)
    config, service = loaded.config, loaded.config.training_service
    assert isinstance(service, KubernetesConfig)
    assert (service.image, service.cpu_number, service.memory_size) == ("images.example.org/digits", 4, "16384Mi")
    assert (service.service_account, service.namespace) == ("trials", "ml")
    assert (config.trial_command, config.trial_gpu_number) == ("python trial.py", 2)
    assert config.trial_code_directory == directory / "code"
    told = " ".join(str(notice) for notice in loaded.notices)
    for key in (
        "authorName",
        "frameworkcontrollerConfig.storage",
        "frameworkcontrollerConfig.nfs",
        "taskRoles[0].name",
    ):
        assert key in told
    assert "frameworkAttemptCompletionPolicy.minSucceededTaskCount" in told


@pytest.mark.parametrize("role", ["worker", "master", "ps"])
def test_the_only_role_may_have_any_name(small_mapping: dict[str, Any], directory: Path, role: str) -> None:
    service = {"platform": "kubeflow", role: {"dockerImage": "digits", "command": "python alone.py"}}
    assert read(small_mapping, directory, service).config.trial_command == "python alone.py"


@pytest.mark.parametrize(
    ("key", "is_of_a_role"),
    [*((key, True) for key in ROLE_KEYS), *((key, False) for key in SECTION_KEYS)],
    ids=lambda value: value.name if isinstance(value, OperatorKey) else "",
)
def test_a_key_does_what_its_row_says(
    small_mapping: dict[str, Any], directory: Path, key: OperatorKey, is_of_a_role: bool
) -> None:
    without, service = section(), section()
    for name in (key.name, key.old_name) if is_of_a_role else (key.name,):
        if name is None:
            continue
        holder = service["worker"] if is_of_a_role else service
        for other in (key.name, key.old_name):
            holder.pop(other, None)
        holder[name] = EXAMPLES.get(key.name, "value")
        path = f"trainingService.{'worker.' if is_of_a_role else ''}{name}"
        if key.refusal:
            with pytest.raises(ConfigError) as caught:
                read(small_mapping, directory, service)
            assert [(problem.key, problem.message) for problem in caught.value.problems] == [(path, key.refusal)]
            continue
        before, after = read(small_mapping, directory, without), read(small_mapping, directory, service)
        assert (before.config == after.config) is (key.becomes is None)
        assert (path in str(after.notices[0])) is (key.becomes is None)


@pytest.mark.slow
@pytest.mark.parametrize("path", OPERATOR_PATHS)
def test_a_key_without_a_value_is_not_given(small_mapping: dict[str, Any], directory: Path, path: str) -> None:
    _, *parents, name = path.split(".")
    outcomes = []
    for more in ({name: None}, {}):
        role = {key: value for key, value in section()["worker"].items() if key != name}
        if not parents:
            service = section(**more)
        elif parents == [TASK_ROLES]:
            service = {"platform": "frameworkcontroller", TASK_ROLES: [{**role, **more}]}
        else:
            service = {"platform": "kubeflow", parents[0]: {**role, **more}}
        try:
            loaded = read(small_mapping, directory, service)
            outcomes.append((loaded.config, loaded.notices))
        except ConfigError as refused:  # without an image or a command
            assert name in ("dockerImage", "command")
            outcomes.append(refused.problems)
    assert outcomes[0] == outcomes[1]


def test_keys_of_platform_kubernetes_may_stand_beside_a_role(small_mapping: dict[str, Any], directory: Path) -> None:
    service = read(small_mapping, directory, section(imagePullSecrets=["registry"], context="gpu")).config
    kubernetes = service.training_service
    assert isinstance(kubernetes, KubernetesConfig)
    assert (kubernetes.image_pull_secrets, kubernetes.context) == (("registry",), "gpu")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("count", [2, 0, True, "1"])
def test_a_role_with_several_pods_is_refused(
    small_mapping: dict[str, Any], refused: Refused, name: str, count: object
) -> None:
    service = section()
    service["worker"][name] = count
    [problem] = refused({**small_mapping, "trialCommand": None, "trainingService": service})
    assert (problem.key, problem.expected) == (f"trainingService.worker.{name}", "1")
    assert "torchrun" in problem.message
    assert "not available yet" in problem.message


def test_several_roles_are_refused_by_name_and_place(problems: Problems) -> None:
    [problem] = problems(f"{KUBEFLOW}  ps: {{command: python ps.py, dockerImage: digits}}\n").values()
    assert (problem.key, problem.line) == ("trainingService.ps", 19)
    assert problem.found == "trainingService.worker and trainingService.ps"


@pytest.mark.parametrize(
    ("service", "key", "expected"),
    [
        ({"platform": "kubeflow"}, "trainingService.worker", "a role, with command and dockerImage"),
        ({"platform": "frameworkcontroller"}, "trainingService.taskRoles[0]", "a role, with command and dockerImage"),
        ({"platform": "frameworkcontroller", "taskRoles": 3}, "trainingService.taskRoles", "a list of roles"),
        ({"platform": "frameworkcontroller", "taskRoles": ["x"]}, "trainingService.taskRoles[0]", "a mapping"),
        ({"platform": "kubeflow", "worker": "x"}, "trainingService.worker", "a mapping"),
        (
            section(worker={"dockerImage": "x", "command": "y", "commnd": "z"}),
            "trainingService.worker.commnd",
            "a known",
        ),
        (section(image="x"), "trainingService.worker.dockerImage", "either trainingService.worker.dockerImage or"),
        (section(worker={"dockerImage": "x", "image": "y"}), "trainingService.worker.image", "either"),
        (section(worker={"dockerImage": "x", "cpuNumber": 0}), "trainingService.worker.cpuNumber", "a number of more"),
        (section(worker={"dockerImage": "x", "memorySize": -3}), "trainingService.worker.memorySize", "an amount of"),
        (section(worker={"command": "y"}), "trainingService.image", "a value"),
        (section(replica=3), "trainingService.replica", "a known key"),
    ],
)
def test_what_is_wrong_is_reported_where_it_stands(
    small_mapping: dict[str, Any], refused: Refused, service: dict[str, Any], key: str, expected: str
) -> None:
    [problem] = refused({**small_mapping, "trainingService": service})
    assert problem.key == key
    assert problem.expected.startswith(expected)


def test_a_template_of_frameworks_is_refused_with_what_to_use(problems: Problems) -> None:
    text = (
        OLD[: OLD.index("  taskRoles")]
        + "  command: python trial.py\nframeworkcontrollerConfig: {configPath: fc.yml}\n"
    )
    [problem] = problems(text).values()
    assert (problem.key, problem.line) == ("frameworkcontrollerConfig.configPath", 10)
    assert "podTemplate" in problem.message


def test_nnis_own_image_gets_a_notice(small_mapping: dict[str, Any], directory: Path) -> None:
    service = section(worker={"dockerImage": "msranni/nni:latest", "command": "python trial.py"})
    notices = read(small_mapping, directory, service).notices
    assert [notice.key for notice in notices] == ["trainingService.platform", "trainingService.worker.dockerImage"]
    assert "Python before 3.10" in notices[1].message


@pytest.mark.parametrize("text", [KUBEFLOW, OLD])
def test_a_converted_file_means_the_same(load: Load, directory: Path, text: str) -> None:
    before = load(text).config
    converted, notices = convert_file(directory / "experiment.yml")
    assert converted["trainingService"]["platform"] == "kubernetes"
    assert "is read as kubernetes" in str(notices[-1])
    file = directory / "converted.yml"
    YAML().dump(converted, file)
    after = load(file.read_text())
    assert (after.config, after.notices) == (before, ())
    assert convert_file(file) == (converted, ())


NAMES = sorted({part for path in OPERATOR_PATHS for part in path.split(".")[1:]} | {"image", "platform", "mounts", "x"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.floats()
    | st.sampled_from(["digits", "nfs", "", "16gb", "ä\n"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(NAMES), children, max_size=5),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    platform=st.sampled_from(["kubeflow", "frameworkcontroller"]),
    service=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    role=st.none() | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
)
def test_any_section_is_read_or_refused_with_keys_and_reasons(
    tmp_path_factory: pytest.TempPathFactory, platform: str, service: dict[str, Any], role: dict[str, Any] | None
) -> None:
    directory = tmp_path_factory.getbasetemp()
    written = {**service, "platform": platform}
    if role is not None:
        written |= {"worker": role} if platform == "kubeflow" else {"taskRoles": [role]}
    mapping = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "tuner": {"name": "Random"},
        "trainingService": written,
    }
    for problem in problems_of(mapping, directory):
        assert problem.expected or problem.message


def problems_of(mapping: dict[str, Any], directory: Path) -> tuple[ConfigProblem, ...]:
    """Why a mapping is refused; where it is read, as platform kubernetes."""
    try:
        loaded = load_experiment_mapping(mapping, directory)
    except ConfigError as refused:
        return refused.problems
    assert loaded.config.training_service.platform == "kubernetes"
    return ()
