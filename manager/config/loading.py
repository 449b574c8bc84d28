"""From a YAML file, or a mapping, to a validated configuration: one function a step, all problems at once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from proctor.manager.config.document import parse, read_text
from proctor.manager.config.errors import ConfigError, ConfigReport, KeyPath, Notice, SourcePosition
from proctor.manager.config.experiment import AlgorithmConfig, ExperimentConfig, TunerConfig
from proctor.manager.config.fields import expanded
from proctor.manager.config.key_names import folded
from proctor.manager.config.keys import KEYS, advisor_as_tuner, apply_treatments, as_truth, without_nulls
from proctor.manager.config.matching import match_keys
from proctor.manager.config.objective import settle_objective
from proctor.manager.config.operators import convert_operators
from proctor.manager.config.secrets import empty_secrets
from proctor.manager.config.sections import (
    NONE_REGISTERED,
    Refusal,
    Registered,
    check_algorithms,
    check_class_args,
    check_trial_scheduler,
    find_registered,
    notice_idle_verdict_timeout,
    resolve_registered,
    settle_search_space,
    settle_service,
)
from proctor.manager.config.tree import Member, TreeNode, describe, find, from_plain, plain
from proctor.manager.config.validation import report_unsendable, validate
from proctor.manager.config.version1 import OLD_KEYS, convert_all, convert_version1
from proctor.manager.dispatcher.algorithms.catalog import KINDS, TUNER

_KNOWN_BESIDES = tuple(
    dict.fromkeys(
        path.split(".")[0] for path in (*(row.path for row in KEYS), *(old.path for old in OLD_KEYS)) if " " not in path
    )
)


@dataclass(frozen=True)
class LoadedExperiment:
    """A configuration that can be run, and what came with it."""

    config: ExperimentConfig
    notices: tuple[Notice, ...]
    mapping: Mapping[str, Any]
    """The keys and values as they were written, less the secrets: what is sent to a manager."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Secrets by path in the canonical configuration, `training_service.machine_list.0.password`."""


def load_experiment(
    path: str | Path, *, registered: Mapping[str, Registered] = NONE_REGISTERED, refusal: Refusal | None = None
) -> LoadedExperiment:
    """Read and check an experiment's YAML (or JSON) file; nothing is started.

    Relative paths in it start at its directory. `registered` are classes that may be named like built-in algorithms,
    by lower-case name; `refusal` asks their validators, which are the user's code. Raises ConfigError with every
    problem found.
    """
    file, report = Path(path), ConfigReport()
    text = read_text(file, report)
    root = parse(text, str(file), report) if text is not None else None
    if text is None or root is None:
        report.raise_if_any()
        raise AssertionError("a document that could not be read was not reported")
    return _load(root, file.parent.absolute(), report, registered, refusal)


def load_experiment_mapping(
    mapping: Mapping[str, Any],
    directory: str | Path,
    *,
    registered: Mapping[str, Registered] = NONE_REGISTERED,
    refusal: Refusal | None = None,
) -> LoadedExperiment:
    """Check an experiment given as Python values, keys in camelCase or snake_case.

    Relative paths start at `directory`. `registered` and `refusal` are as in `load_experiment`. Raises ConfigError with
    every problem found, without positions.
    """
    report = ConfigReport()
    try:
        root = from_plain(mapping)
    except TypeError as error:
        report.problem(SourcePosition(), (), message=str(error))
        raise ConfigError(report.problems) from error
    return _load(root, Path(directory).absolute(), report, registered, refusal)


def convert_file(path: str | Path) -> tuple[dict[str, Any], tuple[Notice, ...]]:
    """A file of NNI's first format (v1), or for its operators on Kubernetes, with the present keys, in the order of
    the reference, and a notice for each key that was converted. A file that has none comes back as it is. Raises
    ConfigError for what cannot be read.
    """
    report = ConfigReport()
    text = read_text(Path(path), report)
    root = parse(text, str(path), report) if text is not None else None
    if root is not None and not isinstance(root.value, dict):
        report.problem(root.place, (), expected="a mapping of keys", found=describe(plain(root)))
    report.raise_if_any()
    assert root is not None, "a document that could not be read was not reported"
    converted = cast(dict[str, Any], plain(convert_operators(convert_all(without_nulls(root), report), report)))
    report.raise_if_any()
    places = [folded(row.path) for row in KEYS if "." not in row.path]
    order = {name: place for place, name in enumerate(dict.fromkeys(places))}
    ordered = sorted(converted, key=lambda name: order.get(folded(name), len(order)))
    return {name: converted[name] for name in ordered}, tuple(report.notices)


def _load(
    root: TreeNode,
    directory: Path,
    report: ConfigReport,
    registered: Mapping[str, Registered],
    refusal: Refusal | None,
) -> LoadedExperiment:
    if not isinstance(root.value, dict):
        report.problem(root.place, (), expected="a mapping of keys", found=describe(plain(root)))
        report.raise_if_any()
    written = root
    root = without_nulls(root)
    root = convert_version1(root, report)
    root = convert_operators(root, report)
    root = apply_treatments(root, report)
    root = advisor_as_tuner(root, report)
    root = settle_service(root, report)
    root = match_keys(root, ExperimentConfig, report, _KNOWN_BESIDES)
    named = find_registered(root, registered)
    root = resolve_registered(root, named)
    root = settle_objective(root, report)
    root, vault = empty_secrets(root, report)
    root = _with_defaults(root)
    root, space = settle_search_space(root, directory, report)
    config = validate(root, ExperimentConfig, directory, report)
    algorithms = _sound_algorithms(root, directory)
    check_algorithms(root, algorithms, space, report)
    check_trial_scheduler(root, report)
    notice_idle_verdict_timeout(root, algorithms, report)
    if refusal is not None:
        check_class_args(root, named, algorithms, refusal, report)
    _check_directories(root, directory, report)
    report_unsendable(written, report)
    report.raise_if_any()
    assert config is not None, "a configuration that is not valid was not reported"
    mapping = cast(dict[str, Any], vault.redact(written))
    return LoadedExperiment(config, tuple(report.notices), mapping, vault.secrets)


def _with_defaults(root: TreeNode) -> TreeNode:
    """What depends on other keys: `debug` sets the log level, directories are the configuration's own."""
    root = _with_default(root, "trialCodeDirectory", ".")
    debug = root.members.get("debug")
    if debug is not None and as_truth(debug.node.value) is True:
        root = _with_default(root, "logLevel", "debug")
    for kind in KINDS:
        member = root.members.get(kind)
        if member is not None and "className" in member.node.members:
            root = root.with_value(kind, _with_default(member.node, "codeDirectory", "."))
    return root


def _with_default(node: TreeNode, key: str, value: str) -> TreeNode:
    if key in node.members:
        return node
    return node.with_member(key, Member(key, node.place, TreeNode(value, node.place, (*node.path, key))))


def _sound_algorithms(root: TreeNode, directory: Path) -> dict[str, AlgorithmConfig]:
    """The algorithms that follow their model; what is wrong with others is reported already."""
    sound = {}
    for kind in KINDS:
        model = TunerConfig if kind == TUNER else AlgorithmConfig
        member = root.members.get(kind)
        algorithm = validate(member.node, model, directory, ConfigReport()) if member else None
        if algorithm is not None:
            sound[kind] = algorithm
    return sound


def _check_directories(root: TreeNode, directory: Path, report: ConfigReport) -> None:
    """The code must be there. A key that is not concerns its machine alone: the others can be used, and it may come."""
    code, its_path = _named_path(root, ("trialCodeDirectory",), directory)
    if its_path is not None and not os.path.isdir(its_path):
        report.problem(
            code.place,
            code.path,
            expected="an existing directory",
            found=f"no directory at {its_path}",
            message=_RELATIVE,
        )
    service = root.members.get("trainingService")
    machines = service.node.members.get("machineList") if service else None
    for index in range(len(machines.node.items) if machines else 0):
        key, its_path = _named_path(root, ("trainingService", "machineList", index, "sshKeyFile"), directory)
        if its_path is not None and not os.path.isfile(its_path):
            report.notice(
                key.place, key.path, f"there is no file at {its_path}, its machine cannot be reached; {_RELATIVE}"
            )


_RELATIVE = "relative paths start at the directory of the configuration"


def _named_path(root: TreeNode, path: KeyPath, directory: Path) -> tuple[TreeNode, Path | None]:
    """Where a path is written, and what it names; None where none is written."""
    node, _, complete = find(root, path)
    return node, directory / expanded(node.value) if complete and isinstance(node.value, str) else None
