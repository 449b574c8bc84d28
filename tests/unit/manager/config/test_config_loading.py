from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.config.errors import ConfigError, ConfigProblem, describe_problems
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.keys import KEYS
from proctor.manager.config.loading import LoadedExperiment, load_experiment, load_experiment_mapping
from proctor.manager.config.operators import OPERATOR_PATHS
from proctor.manager.config.version1 import OLD_KEYS

KNOWN = sorted(
    {part.removesuffix("[]") for row in KEYS for part in row.path.split(".")}
    | {part for path in OPERATOR_PATHS for part in path.split(".")}
    | {part for old in OLD_KEYS for part in (*old.path.split("."), "classFileName")}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.floats()
    | st.sampled_from(
        [
            "local",
            "remote",
            "kubeflow",
            "frameworkcontroller",
            "NFS",
            "TPE",
            "Hyperband",
            "x.py",
            "a.B",
            "10m",
            ".",
            "ä\n",
        ]
    ),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), children, max_size=5),
    max_leaves=12,
)
Load = Callable[[str], LoadedExperiment]
Problems = Callable[[str], dict[str, ConfigProblem]]
Refused = Callable[[dict[str, Any]], tuple[ConfigProblem, ...]]


def test_the_smallest_configuration_has_the_documented_defaults(load: Load, small: str, directory: Path) -> None:
    loaded = load(small)
    assert loaded.notices == ()
    assert loaded.config.canonical() == {
        "experiment_name": None,
        "experiment_type": "hpo",
        "search_space_file": None,
        "search_space": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trial_command": "python trial.py",
        "trial_code_directory": str(directory),
        "trial_concurrency": 1,
        "trial_gpu_number": None,
        "max_experiment_duration_seconds": None,
        "max_trial_duration_seconds": None,
        "max_trial_number": None,
        "max_trial_retries": 0,
        "max_infrastructure_retries": 5,
        "retry_exit_codes": [],
        "max_failed_trials": None,
        "max_gpu_hours": None,
        "priority": 0,
        "preemptible": False,
        "debug": False,
        "log_level": "info",
        "experiment_working_directory": None,
        "tuner_gpu_indices": None,
        "objective": {"metric": "default", "direction": "maximize"},
        "tuner": {
            "name": "TPE",
            "class_name": None,
            "code_directory": None,
            "class_args": {},
            "include_intermediate_results": None,
        },
        "assessor": None,
        "trial_scheduler": None,
        "training_service": {
            "platform": "local",
            "use_active_gpu": False,
            "max_trial_number_per_gpu": 1,
            "gpu_indices": None,
        },
        "shared_storage": None,
        "report_from": 0,
        "code_snapshot": False,
        "seed": None,
        "keep_checkpoints": {"newest": 2, "best": 1},
        "checkpoint_quota_mb": None,
        "copy_checkpoints": True,
        "checkpoint_storage": None,
        "save_seconds": None,
        "verdict_timeout_seconds": None,
        "lease_seconds": None,
    }


def test_the_canonical_form_gives_the_same_configuration_back(load: Load, small: str) -> None:
    config = load(small + "maxTrialDuration: 90s\nassessor: {name: Medianstop}\ntunerGpuIndices: '0,1'\n").config
    assert ExperimentConfig.from_canonical(config.canonical()) == config


def test_keys_match_whatever_their_case_and_underscores(load: Load, small: str) -> None:
    odd = small.replace("trialCommand", "trial_command").replace("trialConcurrency", "TRIALConcurrency")
    odd = odd.replace("trainingService", "Training_Service").replace("platform", "Platform")
    assert load(odd).config == load(small).config


def test_python_values_are_taken_with_either_spelling(small_mapping: dict[str, Any], directory: Path) -> None:
    small_mapping["max_trial_number"] = 3
    small_mapping["trial_code_directory"] = directory / "code"
    config = load_experiment_mapping(small_mapping, directory).config
    assert (config.max_trial_number, config.trial_code_directory) == (3, directory / "code")


def test_python_values_that_yaml_cannot_say_are_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="found object"):
        load_experiment_mapping({"tuner": object()}, directory)
    with pytest.raises(ConfigError, match="keys must be text"):
        load_experiment_mapping({1: 2}, directory)  # type: ignore[dict-item]


def test_a_problem_of_python_values_has_a_key_and_no_position(small_mapping: dict[str, Any], refused: Refused) -> None:
    [problem] = refused({**small_mapping, "trialConcurrency": 0})
    assert str(problem) == "trialConcurrency: expected at least 1, found the number 0"


def test_all_problems_are_told_at_once_in_the_order_of_the_text(load: Load, directory: Path) -> None:
    text = """\
searchSpace: {lr: {_type: uniform, _value: [2, 1]}}
trialComand: python trial.py
trialConcurrency: two
maxTrialNumber: 0
logLevel: warn
trialCodeDirectory: nowhere
tuner: {name: TPEE}
assessor: {name: Medianstop, classArgs: {start_stop: 3}}
trainingService:
  platform: locall
"""
    with pytest.raises(ConfigError) as caught:
        load(text)
    file = directory / "experiment.yml"
    assert [(problem.line, problem.key) for problem in caught.value.problems] == [
        (1, "trialCommand"),
        (1, "searchSpace.lr._value"),
        (2, "trialComand"),
        (3, "trialConcurrency"),
        (4, "maxTrialNumber"),
        (5, "logLevel"),
        (6, "trialCodeDirectory"),
        (7, "tuner.name"),
        (8, "assessor.classArgs.start_stop"),
        (10, "trainingService.platform"),
    ]
    lines = describe_problems(caught.value).splitlines()
    assert lines[0] == f"{file}:1:1: trialCommand: expected a value, found nothing; this key is required"
    assert lines[2] == (f"{file}:2:1: trialComand: expected a known key, found trialComand; did you mean trialCommand?")
    assert lines[3] == f"{file}:3:19: trialConcurrency: expected a whole number, found the text 'two'"
    assert lines[9].endswith("expected local or remote or kubernetes, found the text 'locall'; did you mean local?")


@pytest.mark.parametrize(
    ("line", "expected", "found"),
    [
        ("trialGpuNumber: -1", "at least 0", "the number -1"),
        ("trialGpuNumber: 1.5", "a whole number", "the number 1.5"),
        ("trialGpuNumber: true", "a whole number", "true"),
        ("maxTrialNumber: '10'", "a whole number", "the text '10'"),
        ("maxTrialDuration: 10 minutes", "a duration of more than zero", "the text '10 minutes'"),
        ("maxExperimentDuration: 0", "a duration of more than zero", "the number 0"),
        ("verdictTimeout: 8d", "a duration of at most 7 days (7d), such as 10m", "the text '8d'"),
        ("verdictTimeout: -1", "a duration of zero or more", "the number -1"),
        ("maxGpuHours: 0", "a number of hours of more than zero, such as 100 or 0.5", "the number 0"),
        ("maxGpuHours: 2d", "a number of hours of more than zero", "the text '2d'"),
        ("maxGpuHours: .inf", "a number of hours of more than zero", "the number inf"),
        ("priority: 1001", "at most 1000", "the number 1001"),
        ("priority: high", "a whole number", "the text 'high'"),
        ("preemptible: 1", "true or false", "the number 1"),
        ("debug: 1", "true or false", "the number 1"),
        ("experimentName: [a]", "text", "a list of 1"),
        ("tunerGpuIndices: [0, 0]", "GPU indices that differ", "a list of 2"),
        ("retryExitCodes: [75, 0]", "exit codes from 1 to 255, as in [75, 137]", "a list of 2"),
        ("checkpointStorage: shared", "an absolute path, or a URL such as s3://bucket/folder", "the text 'shared'"),
        ("checkpointStorage: 's3://'", "a URL such as s3://bucket/folder", "the text 's3://'"),
        ("checkpointStorage: 'file:///mnt'", "an absolute path instead of a file URL", "the text 'file:///mnt'"),
        (
            "checkpointStorage: 's3://key:secret@bucket/folder'",
            "a URL without credentials and queries; name the variables that hold them under environment",
            "the text 's3://key:secret@bucket/folder'",
        ),
        (
            "checkpointStorage: {location: 's3://b/c', environment: ['A B']}",
            "names of environment variables, as in [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]",
            "a list of 1",
        ),
        ("retryExitCodes: 'all'", "exit codes from 1 to 255, as in [75, 137]", "the text 'all'"),
        ("maxInfrastructureRetries: -2", "at least -1", "the number -2"),
        ("experimentWorkingDirectory: 3", "a path", "the number 3"),
        ("assessor: Medianstop", "a mapping", "the text 'Medianstop'"),
        ("assessor: {}", "either name", "an empty mapping"),
        ("assessor: {name: a, className: b.C}", "either name", "a mapping with name, className"),
        ("assessor: {className: Mine}", "module.ClassName", "the text 'Mine'"),
        ("assessor: {name: Medianstop, classArgs: [1]}", "a mapping", "a list of 1"),
        ("assessor: {name: Medianstop, classArgs: {start_step: .inf}}", "a finite number", "the number inf"),
        ("seed: abc", "a whole number", "the text 'abc'"),
    ],
)
def test_values_of_the_wrong_kind_say_what_was_expected(
    problems: Problems, small: str, line: str, expected: str, found: str
) -> None:
    (problem,) = problems(small + line + "\n").values()
    assert (problem.line, problem.expected.startswith(expected)) == (8, True), problem
    assert problem.found.startswith(found)


OWN = "tuner: {className: tuners.Mine, codeDirectory: .}"
FAULTS = {
    "a null character": (
        "python trial.py",
        '"echo \\0"',
        ":2:15: trialCommand: expected text without the character U+0000",
    ),
    "too many trials": (
        "rency: 1",
        "rency: 1000000",
        ":3:19: trialConcurrency: expected at most 10000, found the number",
    ),
    "a number that JSON cannot write": (
        "uniform, _value: [0, 1]",
        "choice, _value: [1, .nan]",
        ":1:46: searchSpace.x._value[1]: expected a finite number, found the number nan",
    ),
    "the same in the space of a tuner of the user's": (
        "1]}}\n",
        f".inf]}}}}\n{OWN}\n",
        ":1:47: searchSpace.x._value[1]: expected a finite number, found the number inf",
    ),
    "a tuner that cannot search the space": ("TPE", "Batch", ":1:14: searchSpace: Batch needs exactly one parameter"),
    "a missing key of a section": (
        "  platform: local",
        "  gpuIndices: 0",
        ":6:1: trainingService.platform: expected local or remote or kubernetes, found nothing",
    ),
    "a key in two spellings": (
        "objective",
        "trial_command: other\nobjective",
        ":4:1: trial_command: expected each key once, found trial_command after trialCommand, which is the same key",
    ),
    "two tuners": ("objective", "advisor: {name: TPE}\nobjective", ":4:1: advisor: expected either tuner or advisor"),
    "a class in a file that is not Python": (
        "{name: TPE}",
        "{className: broken.X}",
        "/broken.py, line 2, is not Python",
    ),
    "a name with a null character": ("objective", 'experimentName: "a\\0b"\nobjective', ":4:17: experimentName: "),
    "a name of two lines": ("objective", 'experimentName: "a\\nb"\nobjective', ":4:17: experimentName: "),
    "a name with a color": ("objective", 'experimentName: "\\x1b[31mred"\nobjective', ":4:17: experimentName: "),
    "a duration that no clock can hold": (
        "objective",
        "maxTrialDuration: 1e303\nobjective",
        ":4:19: maxTrialDuration: ",
    ),
    "many days": ("objective", "maxTrialDuration: 1e9d\nobjective", ":4:19: maxTrialDuration: "),
    "a second more than a century": (
        "objective",
        "maxTrialDuration: 3153600001\nobjective",
        ":4:19: maxTrialDuration: ",
    ),
    "an old and a new key": ("objective", "maxTrialNumber: 3\nmaxTrialNum: 4\nobjective", ":5:1: maxTrialNum: "),
    "multiPhase": ("objective", "multiPhase: true\nobjective", "start one trial for each"),
    "an unknown key of an old section": (
        "trialCommand: python trial.py",
        "trial: {comand: x, command: python trial.py, gpuNum: 0}",
        ":2:9: trial.comand: expected a known key, found comand; did you mean command?",
    ),
    "an old section that is no mapping": (
        "objective",
        "trial: python x.py\nobjective",
        "trial: expected a mapping, found the text 'python x.py'",
    ),
}


@pytest.mark.parametrize(("text", "other", "problem"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_problem_that_says_where_it_is(
    problems: Problems, small: str, directory: Path, text: str, other: str, problem: str
) -> None:
    (directory / "broken.py").write_text("\nclass X(:\n")
    written = small.replace(text, other, 1)
    [found] = problems(written.replace("tuner: {name: TPE}\n", "") if OWN in written else written).values()
    assert problem in str(found)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(KNOWN), VALUES))
@settings(max_examples=2 * settings().max_examples)
def test_whatever_is_written_is_loaded_or_refused_with_problems(mapping: dict[str, Any]) -> None:
    reported: tuple[ConfigProblem, ...] = ()
    try:
        config = load_experiment_mapping(mapping, "/nowhere").config
    except ConfigError as error:
        reported = error.problems
    else:
        assert ExperimentConfig.from_canonical(config.canonical()) == config
        return
    assert reported
    assert all("\n" not in str(problem) for problem in reported)


@pytest.mark.parametrize(
    ("value", "seconds"), [("90", 90), ("'90'", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172800)]
)
def test_durations_are_seconds_or_a_number_with_a_unit(load: Load, small: str, value: str, seconds: float) -> None:
    assert load(f"{small}maxTrialDuration: {value}\n").config.max_trial_duration_seconds == seconds


@pytest.mark.parametrize(
    ("scheduler", "notices"),
    [
        ("{name: ASHA}", []),
        ("{className: schedulers.Mine}", []),
        ("{name: PBT, classArgs: {time_attr: training_iteration}}", []),
        ("{name: PBT}", ["has no effect: under PBT by time_total_s no trial waits for a verdict"]),
        (
            "{name: mediaNstopping, classArgs: {time_attr: training_iteration}}",
            ["has no effect: under MedianStopping no trial waits for a verdict"],
        ),
        ("null", ["has no effect: there is no trialScheduler"]),
    ],
)
def test_a_time_to_wait_for_a_verdict_without_effect_gets_a_notice(
    load: Load, small: str, scheduler: str, notices: list[str]
) -> None:
    loaded = load(f"{small}trialScheduler: {scheduler}\nverdictTimeout: 0.5h\n")
    assert loaded.config.verdict_timeout_seconds == 1800
    assert [notice.message for notice in loaded.notices if notice.key == "verdictTimeout"] == notices


@pytest.mark.parametrize(
    ("value", "indices"), [("0", (0,)), ("'0,1'", (0, 1)), ("[2, 0]", (2, 0)), ("''", ()), ("null", None)]
)
def test_gpu_indices_are_a_number_a_text_or_a_list(
    load: Load, small: str, value: str, indices: tuple[int, ...] | None
) -> None:
    assert load(f"{small}tunerGpuIndices: {value}\n").config.tuner_gpu_indices == indices


@pytest.mark.parametrize(("word", "meaning"), [("yes", True), ("On", True), ("no", False), ("true", True)])
def test_the_old_words_for_true_and_false_still_work(load: Load, small: str, word: str, meaning: bool) -> None:
    assert load(f"{small}codeSnapshot: {word}\n").config.code_snapshot is meaning


def test_whole_numbers_may_be_written_as_powers_of_ten(load: Load, small: str) -> None:
    assert load(f"{small}maxTrialNumber: 1e3\n").config.max_trial_number == 1000


def test_relative_paths_start_at_the_file_and_tilde_is_home(
    load: Load, small: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(directory))
    config = load(small + "trialCodeDirectory: ./code\nexperimentWorkingDirectory: ~/runs\n").config
    assert config.trial_code_directory == directory / "code"
    assert config.experiment_working_directory == directory / "runs"


def test_a_relative_name_of_the_file_still_gives_absolute_paths(
    small: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "experiment.yml").write_text(small)
    monkeypatch.chdir(directory)
    assert load_experiment("experiment.yml").config.trial_code_directory == directory


def test_a_canonical_form_with_a_relative_path_is_refused(load: Load, small: str) -> None:
    canonical = load(small).config.canonical() | {"trial_code_directory": "code"}
    with pytest.raises(ValueError, match="an absolute path"):
        ExperimentConfig.from_canonical(canonical)


def test_the_search_space_may_lie_in_a_file_of_its_own(load: Load, small: str) -> None:
    text = small.replace("searchSpace: {x: {_type: uniform, _value: [0, 1]}}", "searchSpaceFile: space.json")
    assert load(text).config.search_space == {"y": {"_type": "choice", "_value": [1e-4, 2]}}


def test_a_problem_inside_the_search_space_file_names_that_file(
    problems: Problems, small: str, directory: Path
) -> None:
    (directory / "bad.yml").write_text("lr:\n  _type: uniform\n  _value: [3, 2]\n")
    text = small.replace("searchSpace: {x: {_type: uniform, _value: [0, 1]}}", "searchSpaceFile: bad.yml")
    (problem,) = problems(text).values()
    assert (problem.file, problem.line, problem.column) == (str(directory / "bad.yml"), 3, 11)


OWN_SPACES = ["{}", "[]", "[1, {a: 2}]", "{f: {_type: factor, _value: 96}}", "{f: 3, _name: x}", "text", "0"]


@pytest.mark.parametrize("space", OWN_SPACES)
def test_the_search_space_of_a_tuner_of_the_users_is_its_own(
    load: Load, small: str, directory: Path, space: str
) -> None:
    (directory / "tuners.py").write_text("class Mine: ...\n")
    own = small.replace("{name: TPE}", "{className: tuners.Mine}")
    text = own.replace("searchSpace:\n  x: {_type: uniform, _value: [0, 1]}", f"searchSpace: {space}")
    inline = load(text).config.search_space
    (directory / "own.yml").write_text(space)
    assert load(text.replace(f"searchSpace: {space}", "searchSpaceFile: own.yml")).config.search_space == inline
    assert ExperimentConfig.from_canonical(load(text).config.canonical()).search_space == inline


@pytest.mark.parametrize(
    ("space", "line", "text"),
    [
        ("searchSpaceFile: none.json", 1, "an existing file"),
        ("searchSpaceFile: empty.json", 1, "an empty document"),
        ("searchSpaceFile: list.json", 1, "a mapping, found a list"),
        ("searchSpaceFile: 3", 1, "a path"),
        ("searchSpace: {}", 1, "empty"),
        ("searchSpace: [1]", 1, "a mapping, found a list"),
        ("searchSpaceFile: space.json\nsearchSpace: {x: {_type: choice, _value: [1]}}", 1, "either searchSpace or"),
        ("experimentName: none", 1, "this key is required"),
    ],
)
def test_a_search_space_that_is_not_there_is_one_problem(
    problems: Problems, small: str, directory: Path, space: str, line: int, text: str
) -> None:
    (directory / "empty.json").write_text("")
    (directory / "list.json").write_text("[1]")
    rest = small.partition("trialCommand")
    found = problems(f"{space}\n{rest[1]}{rest[2]}")
    assert [(problem.line, text in str(problem)) for problem in found.values()] == [(line, True)], found


def test_gpus_without_use_active_gpu_are_honored_with_a_notice(load: Load, small: str) -> None:
    loaded = load(small + "trialGpuNumber: 2\n")
    assert loaded.config.trial_gpu_number == 2
    assert [(notice.place.line, notice.key) for notice in loaded.notices] == [(8, "trialGpuNumber")]
    assert load(small + "trialGpuNumber: 0\n").notices == ()
    assert load(small + "  useActiveGpu: false\ntrialGpuNumber: 2\n").notices == ()


def test_the_section_of_the_service_wins_over_the_root(load: Load, small: str) -> None:
    loaded = load(small + "  trialCommand: python inner.py\n  trialGpuNumber: 0\n")
    assert (loaded.config.trial_command, loaded.config.trial_gpu_number) == ("python inner.py", 0)
    assert [notice.key for notice in loaded.notices] == ["trialCommand"]


def test_debug_sets_the_log_level_where_none_is_given(load: Load, small: str) -> None:
    assert load(small + "debug: true\n").config.log_level == "debug"
    assert load(small + "debug: true\nlogLevel: error\n").config.log_level == "error"


def test_a_class_of_ones_own_lies_beside_the_configuration_by_default(load: Load, small: str, directory: Path) -> None:
    tuner = load(small.replace("name: TPE", "className: tuners.Mine")).config.tuner
    assert (tuner.class_name, tuner.code_directory) == ("tuners.Mine", directory)


@pytest.mark.parametrize(
    ("storage", "key", "expected"),
    [
        ("{storageType: S3}", "sharedStorage.storageType", "'NFS', 'AzureBlob'"),
        ("{nfsServer: files}", "sharedStorage.storageType", "a value"),
        ("NFS", "sharedStorage", "a mapping"),
    ],
)
def test_a_shared_storage_nobody_knows_is_told(load: Load, small: str, storage: str, key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{small}sharedStorage: {storage}\n")
    reported = [(problem.key, problem.expected) for problem in caught.value.problems]
    assert reported == [("sharedStorage", "no such key"), (key, expected)]


def test_documents_that_are_no_mapping_are_refused(problems: Problems) -> None:
    assert problems("- a\n- b\n")[""].found == "a list of 2"
    assert problems("text\n")[""].found == "the text 'text'"
    assert problems("")[""].found == "an empty document"


def test_a_file_that_is_not_there_is_one_problem(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yml: expected an existing file"):
        load_experiment(directory / "none.yml")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("maxTrialNumber", "maxTrialNumber: 1" + "0" * 30),
        ("seed", "seed: -1" + "0" * 30),
        ("maxTrialDuration", "maxTrialDuration: 1" + "0" * 400),
        ("trialCodeDirectory", "trialCodeDirectory: ~nobody-of-this-name/code"),
        ("experimentWorkingDirectory", 'experimentWorkingDirectory: "a\\0b"'),
    ],
)
def test_values_that_nothing_could_hold_are_problems_with_a_place(
    problems: Problems, small: str, key: str, line: str
) -> None:
    assert problems(small + line)[key].line == small.count("\n") + 1


@pytest.mark.slow
def test_of_many_unknown_keys_the_first_ones_are_reported(small_mapping: dict[str, Any], refused: Refused) -> None:
    problems = refused(small_mapping | {f"unknown{number}": 1 for number in range(100_000)})
    assert len(problems) == 51
    assert "more than 50 unknown keys" in str(problems[-1])


@pytest.mark.slow
def test_a_configuration_of_very_many_values_is_refused(small_mapping: dict[str, Any], directory: Path) -> None:
    with pytest.raises(ConfigError, match="at most 200000 values"):
        load_experiment_mapping(small_mapping | {"searchSpace": {"x": [0] * 300_000}}, directory)


@pytest.mark.parametrize("key", ["host", "user"])
@pytest.mark.parametrize("name", ["-oProxyCommand=true", "gpu 3", "gpu\t3", "gpu\0", "gpu\n3"])
def test_a_host_or_user_that_ssh_would_misread_is_refused(
    small_mapping: dict[str, Any], directory: Path, key: str, name: str
) -> None:
    service = {"platform": "remote", "machineList": [{"host": "gpu-3", key: name}]}
    with pytest.raises(ConfigError, match=f"{key}: expected a name without spaces|{key}: expected text"):
        load_experiment_mapping(small_mapping | {"trainingService": service}, directory)


@pytest.mark.parametrize(
    ("written", "key", "expected"),
    [
        ("0", "keepCheckpoints", "a number from 1, all, or a mapping such as {newest: 2, best: 1}"),
        ("{newest: some}", "keepCheckpoints.newest", "a number from 1, or all"),
    ],
)
def test_what_is_no_number_of_checkpoints_is_answered_with_what_is(problems, small, written, key, expected):
    assert problems(f"{small}\nkeepCheckpoints: {written}\n")[key].expected == expected
