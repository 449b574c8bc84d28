"""From a name in a configuration to a checked or a living algorithm. Importing this imports no algorithm."""

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from proctor.manager.dispatcher.algorithms.base import AssessorAlgorithm, TunerAlgorithm
from proctor.manager.dispatcher.algorithms.catalog import (
    BUILTINS,
    CURRENT_RULES,
    KINDS,
    OPTIMIZE_MODE,
    REFUSED,
    TRIAL_SCHEDULER,
    TUNER,
    AlgorithmProblem,
    Builtin,
    check_arguments,
    check_order,
    fill_arguments,
    unknown_name,
)
from proctor.sdk.scheduler import TrialScheduler
from proctor.sdk.space import SearchSpace, SearchSpaceError, SpaceProblem, parse_search_space
from proctor.sdk.space.parameters import shown

BuiltinAlgorithm = TunerAlgorithm | AssessorAlgorithm | TrialScheduler


def find_builtin(kind: str, name: str) -> Builtin | None:
    """Return the built-in called `name`, whatever its case and with or without NNI's suffix, or None."""
    wanted = _folded(kind, name)
    for builtin in BUILTINS:
        if builtin.kind == kind and wanted in {_folded(kind, known) for known in (builtin.name, *builtin.aliases)}:
            return builtin
    return None


def check_algorithm(
    kind: str, spec: Mapping[str, Any], search_space: SearchSpace | None
) -> tuple[AlgorithmProblem, ...]:
    """Return everything wrong with an algorithm's settings, without running any code of the user's.

    `spec` has either `name` or `class_name` (with `code_directory`), and `class_args`; a key that is None is absent.
    Without a search space only the rest is checked.
    """
    name, class_name = spec.get("name"), spec.get("class_name")
    if (name is None) == (class_name is None):
        found = "neither" if name is None else "both"
        return (AlgorithmProblem((), f"{kind} needs either name or className, found {found}"),)
    if class_name is not None:
        return tuple(_check_custom(str(class_name), spec.get("code_directory"), spec.get("class_args")))
    builtin = find_builtin(kind, str(name))
    if builtin is None:
        return (AlgorithmProblem(("name",), _unknown_algorithm(kind, str(name))),)
    class_args = spec.get("class_args") or {}
    problems = check_arguments(("class_args",), class_args, builtin.arguments)
    if not problems:
        problems = check_order(("class_args",), class_args, builtin)
    problems.extend(_check_installed(builtin))
    if kind == TRIAL_SCHEDULER and not problems:
        problems.extend(_check_scheduler(builtin, class_args, search_space))
    if search_space is not None and kind == TUNER:
        problems.extend(_check_space(builtin, search_space))
    return tuple(problems)


def read_search_space(tuner: Mapping[str, Any], space: Any, *, is_new: bool = True) -> SearchSpace | None:
    """Return a search space as the tuner reads it; None for a class of the user's, whose space is its own.

    `tuner` is as in `check_algorithm`. Raises SearchSpaceError.

    :param is_new: if not, an experiment has it already: what earlier versions accepted is read as they read it.
    """
    if tuner.get("class_name") is not None:
        return None
    builtin = find_builtin(TUNER, str(tuner.get("name")))
    return parse_search_space(space, nested=builtin is None or not builtin.literal, mixed=not is_new)


def fit_parameters(tuner: Mapping[str, Any], space: SearchSpace | None, parameters: Any) -> Any:
    """Return parameters that a person chose as the tuner itself would propose them.

    `tuner` is as in `check_algorithm`, `space` what `read_search_space` has returned for it; a class of the user's
    takes everything. Raises SearchSpaceError where they are outside of the space.
    """
    if space is None:
        return parameters
    builtin = find_builtin(TUNER, str(tuner.get("name")))
    if builtin is None or not builtin.literal:
        added = () if builtin is None or not isinstance(parameters, Mapping) else builtin.adds
        own = {name: parameters[name] for name in added if name in parameters}
        rest = {name: value for name, value in parameters.items() if name not in own} if own else parameters
        return space.fit(rest) | own
    ((name, axis),) = space.parameters.items()
    try:
        return axis.fit(parameters)
    except ValueError:
        message = f"expected an option of {name}, {axis.expected}, found {shown(parameters)}"
        raise SearchSpaceError([SpaceProblem((), message)]) from None


def create_algorithm(
    kind: str,
    name: str,
    class_args: Mapping[str, Any],
    seed: int,
    *,
    direction: str | None = None,
    rules: int = CURRENT_RULES,
) -> BuiltinAlgorithm:
    """Make the built-in called `name`. Raises ValueError with all that is wrong with it.

    `direction` ("maximize" or "minimize") and `seed` are the experiment's; class arguments that name their own win.
    Without a direction the algorithm has its default one. `rules` is the version by which it decides.
    """
    problems = check_algorithm(kind, {"name": name, "class_args": class_args}, None)
    builtin = find_builtin(kind, name)
    if problems or builtin is None:
        raise ValueError(f"{kind} {name}: " + "; ".join(map(str, problems)))
    given = class_args if direction is None else {OPTIMIZE_MODE: direction, **class_args}
    arguments = fill_arguments(given, builtin.arguments)
    if kind == TUNER:
        own_seed = arguments.pop("seed", None)
        arguments["seed"] = seed if own_seed is None else own_seed
    if kind == TRIAL_SCHEDULER:
        arguments["seed"] = seed
    if builtin.takes_rules:
        arguments["rules"] = rules
    return _load_class(builtin)(**arguments)


def describe_brackets(name: str, class_args: Mapping[str, Any]) -> str:
    """Return the brackets of a built-in trial scheduler that has some, as a clause; "" of another one."""
    from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler

    scheduler = create_algorithm(TRIAL_SCHEDULER, name, class_args, 0)
    return scheduler.describe_plan() if isinstance(scheduler, HyperBandScheduler) else ""


def kept_rules(rules: int, algorithms: Iterable[tuple[str, str | None]]) -> str:
    """Return what an experiment that keeps earlier rules does otherwise than a new one, as a sentence; "" where it
    decides as a new one would.

    :param algorithms: of the experiment, each by kind and name (None: a class of the user's).
    """
    clauses: list[str] = []
    named = list(algorithms)
    is_scheduled = any(kind == TRIAL_SCHEDULER for kind, _ in named)
    for kind, name in named:
        builtin = None if name is None else find_builtin(kind, name)
        if builtin is not None:
            changes = {**builtin.changes, **(builtin.scheduled_changes if is_scheduled else {})}
            clauses.extend(f"{builtin.name} {changes[since]}" for since in sorted(changes) if since > rules)
    if not clauses:
        return ""
    return (
        f"keeps the rules that it began with (version {rules}), so that it decides as before. In a new experiment "
        f"(version {CURRENT_RULES}): {'; '.join(clauses)}"
    )


def _load_class(builtin: Builtin) -> Callable[..., BuiltinAlgorithm]:
    module, _, class_name = builtin.location.partition(":")
    found: Callable[..., BuiltinAlgorithm] = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    return found


def describe() -> list[dict[str, Any]]:
    """Return every built-in as plain data, for lists and documentation."""
    return [
        {
            "name": builtin.name,
            "kind": builtin.kind,
            "aliases": list(builtin.aliases),
            "summary": builtin.summary,
            "extra": builtin.extra,
            "installed": not _check_installed(builtin),
            "search_space_types": list(builtin.types) if builtin.kind == TUNER else [],
            "nested_choice": builtin.nested,
            "class_args": [_describe_argument(asdict(argument)) for argument in builtin.arguments],
        }
        for builtin in BUILTINS
    ]


def _describe_argument(argument: dict[str, Any]) -> dict[str, Any]:
    argument["kind"] = argument["kind"].__name__
    argument["choices"], argument["aliases"] = list(argument["choices"]), list(argument["aliases"])
    argument["inner"] = [_describe_argument(inner) for inner in argument["inner"]]
    return argument


def _folded(kind: str, name: str) -> str:
    suffix = "scheduler" if kind == TRIAL_SCHEDULER else kind
    return name.lower().replace("_", "").replace("-", "").removesuffix(suffix)


def _unknown_algorithm(kind: str, name: str) -> str:
    for (refused_kind, refused), instead in REFUSED.items():
        if refused_kind == kind and _folded(kind, refused) == _folded(kind, name):
            return f"NNI's {kind} {refused!r} is not offered; the nearest is {instead}"
    for other in KINDS:
        if other != kind and find_builtin(other, name):
            return f"{name!r} is not a {kind}; move it to {other!r}"
    return unknown_name(kind, name, [builtin.name for builtin in BUILTINS if builtin.kind == kind])


def _check_installed(builtin: Builtin) -> list[AlgorithmProblem]:
    missing = [module for module in builtin.modules if find_spec(module) is None]
    if not missing:
        return []
    advice = f"install it with: pip install 'proctor[{builtin.extra}]'"
    return [AlgorithmProblem(("name",), f"{builtin.name} needs {' and '.join(missing)}; {advice}")]


def _check_space(builtin: Builtin, space: SearchSpace) -> list[AlgorithmProblem]:
    if builtin.name == "Batch":
        return _check_batch_space(space)
    problems = [
        AlgorithmProblem(("search_space", name), f"{builtin.name} sets {name} itself; choose another name")
        for name in builtin.adds
        if name in space.parameters
    ]
    if space.is_nested and not builtin.nested:
        able = ", ".join(known.name for known in BUILTINS if known.nested)
        message = f"{builtin.name} cannot search nested choices; these tuners can: {able}"
        problems.append(AlgorithmProblem(("search_space",), message))
    for path, parameter in space.axes():
        if parameter.type_name not in builtin.types:
            able = ", ".join(
                known.name for known in BUILTINS if parameter.type_name in known.types and known.kind == TUNER
            )
            message = f"{builtin.name} cannot search {parameter.type_name}; these tuners can: {able}"
            problems.append(AlgorithmProblem(("search_space", *path, "_type"), message))
    return problems


def _check_scheduler(
    builtin: Builtin, class_args: Mapping[str, Any], space: SearchSpace | None
) -> list[AlgorithmProblem]:
    """What is wrong with arguments that are each right: what the scheduler itself refuses, and mutations that leave the
    search space."""
    written = class_args.get("hyperparam_mutations")
    if written is not None:
        from proctor.manager.dispatcher.algorithms.schedulers.mutations import check_mutations

        path = ("class_args", "hyperparam_mutations")
        if found := check_mutations(written, space):
            return [AlgorithmProblem((*path, *where), message) for where, message in found]
    try:
        _load_class(builtin)(**fill_arguments(class_args, builtin.arguments))
    except ValueError as error:
        name, _, message = str(error).partition(": ")
        if name in class_args:
            return [AlgorithmProblem(("class_args", name), message)]
        return [AlgorithmProblem(("class_args",), str(error))]
    return []


def _check_batch_space(space: SearchSpace) -> list[AlgorithmProblem]:
    if [axis.type_name for axis in space.parameters.values()] == ["choice"]:
        return []
    wanted = "Batch needs exactly one parameter, a choice whose options are whole parameter sets"
    found = ", ".join(f"{name} ({axis.type_name})" for name, axis in space.parameters.items())
    return [AlgorithmProblem(("search_space",), f"{wanted}; found {found}")]


def _check_custom(class_name: str, code_directory: Any, class_args: Any) -> list[AlgorithmProblem]:
    problems = []
    module, _, name = class_name.rpartition(".")
    if not module or not all(part.isidentifier() for part in class_name.split(".")):
        problems.append(AlgorithmProblem(("class_name",), f"expected module.Class, found {class_name!r}"))
        module = ""
    if class_args is not None and not isinstance(class_args, Mapping):
        problems.append(AlgorithmProblem(("class_args",), f"expected a mapping, found {class_args!r}"))
    directory = Path(str(code_directory or "."))
    if not directory.is_dir():
        problems.append(AlgorithmProblem(("code_directory",), f"{directory} is not a directory"))
    elif module:
        path = directory.joinpath(*module.split("."))
        file = path.with_suffix(".py")
        if code_directory is not None and not file.is_file() and not path.is_dir():
            message = f"{name} should be in {file}, which does not exist"
            problems.append(AlgorithmProblem(("class_name",), message))
        else:
            problems.extend(_check_syntax(file))
    return problems


def _check_syntax(file: Path) -> list[AlgorithmProblem]:
    """Compile a module of the user's without running it."""
    if not file.is_file():
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(file.read_bytes(), str(file), "exec")
    except SyntaxError as error:
        return [AlgorithmProblem(("class_name",), f"{file}, line {error.lineno}, is not Python: {error.msg}")]
    except (OSError, ValueError) as error:
        return [AlgorithmProblem(("class_name",), f"{file} cannot be read: {error}")]
    return []
