"""A first configuration for a script, as `proctor config init` writes it.

The script is read and never run: the parameters it takes from `get_next_parameter`, with the defaults it gives them,
and its argparse options. Ranges are guesses around those defaults; a parameter without a plausible guess becomes a
comment.
"""

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ASKS, REPORTS = "get_next_parameter", "report_final_result"
PLACEHOLDER = "lr: {_type: loguniform, _value: [0.0001, 0.1]}   # an example: replace it with your parameters"
_BY_NAME = (
    (r"(.*_)?(lr|learning_?rate|weight_?decay|wd|l2)", "{_type: loguniform, _value: [0.0001, 0.1]}"),
    (r"(.*_)?dropout(_.*)?", "{_type: uniform, _value: [0.0, 0.6]}"),
    (r"(.*_)?momentum", "{_type: uniform, _value: [0.0, 0.99]}"),
    (r"batch_?size", "{_type: choice, _value: [16, 32, 64, 128]}"),
    (r"(.*_)?(hidden|units|width|dim|channels|features)(_.*)?", "{_type: choice, _value: [32, 64, 128]}"),
)
"""What is usually searched for parameters of such names."""
_PLAUSIBLE = (1e-12, 1e9)
"""Between these a default says something about the range."""
_NOT_SEARCHED = re.compile(
    r"(.*_)?(seed|epochs?|iters?|iterations|num_steps|max_steps|workers|interval|freq|gpus?|device|port|host|rank|world_size"
    r"|dirs?|directory|folder|path|files?|dataset|debug|verbose|log|save|resume|checkpoint|threads|jobs)(_.*)?"
)
_LOWER_IS_BETTER = re.compile(r"loss|error|rmse|mse|mae|perplexity", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z./][\w./ -]*", re.ASCII)


@dataclass(frozen=True)
class ScriptParameter:
    """A parameter that a script can take, with what the script says of it."""

    name: str
    line: int
    default: Any = None
    """A number, a truth value or a text; None: not known."""
    choices: tuple[Any, ...] = ()
    is_flag: bool = False
    """An argparse option without a value."""
    is_required: bool = False
    """The script fails without it."""

    @property
    def is_unknown(self) -> bool:
        """It is to be searched, but the script shows nothing of its range."""
        return not self._guess and (self.is_required or (isinstance(self.default, float) and not self._is_setting))

    @property
    def space(self) -> str:
        """What to search, in YAML; "" where it is better left alone."""
        return "{_type: uniform, _value: [0.0, 1.0]}" if self.is_unknown else self._guess

    @property
    def _is_setting(self) -> bool:
        """Its name says that it is seldom searched."""
        return self.is_flag or bool(_NOT_SEARCHED.fullmatch(self.name.lower().replace("-", "_")))

    @property
    def _guess(self) -> str:
        name, default = self.name.lower().replace("-", "_"), self.default
        if self.choices:
            return f"{{_type: choice, _value: {json.dumps(list(self.choices))}}}"
        if self._is_setting or isinstance(default, str):
            return ""
        if isinstance(default, bool):
            return "{_type: choice, _value: [false, true]}"
        usual = next((space for pattern, space in _BY_NAME if re.fullmatch(pattern, name)), "")
        if default is None or "{_type: uniform" in usual or not _PLAUSIBLE[0] < default < _PLAUSIBLE[1]:
            return usual
        if isinstance(default, int):
            return f"{{_type: choice, _value: [{default // 2}, {default}, {default * 2}]}}" if default > 1 else usual
        if default < 0.05 or "loguniform" in usual:
            return f"{{_type: loguniform, _value: [{default / 10:g}, {default * 10:g}]}}"
        most = min(default * 2, 1.0) if default < 1 else default * 2
        return f"{{_type: uniform, _value: [{default / 2:g}, {most:g}]}}"


@dataclass(frozen=True)
class ScriptFacts:
    """What a script shows of itself without being run."""

    parameters: tuple[ScriptParameter, ...] = ()
    asks: bool = True
    """Whether it calls get_next_parameter."""
    reports: bool = True
    """Whether it calls report_final_result."""
    minimizes: bool = False
    """Whether what it reports looks like a loss."""
    problem: str = ""
    """Why it could not be read."""

    @property
    def searched(self) -> list[ScriptParameter]:
        """The parameters that the search space has."""
        return [parameter for parameter in self.parameters if parameter.space]


def read_script(path: Path) -> ScriptFacts:
    """What a script shows; of one that is not Python, nothing. Raises OSError."""
    if path.suffix != ".py":  # its calls cannot be seen
        return ScriptFacts()
    try:
        tree = ast.parse(path.read_bytes())
        return _facts(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ScriptFacts(problem=f"it cannot be read as Python ({error})")


def render_draft(script: Path, file: Path, facts: ScriptFacts) -> str:
    """The text of a configuration `file` that runs a script."""
    beside = os.path.relpath(script, file.parent)
    outside = beside.startswith(os.pardir)
    directory = os.path.relpath(script.parent, file.parent)
    runner = {".py": "python3 ", ".sh": "bash "}.get(script.suffix, "./")
    command = runner + shlex.quote(script.name if outside else beside)
    called = _scalar(script.name)
    width = max((len(_entry(parameter)) for parameter in facts.parameters), default=0)
    entries = [f"  {_entry(each):<{width}}   # {_origin(each, called)}" for each in facts.parameters]
    if not facts.searched:
        entries.insert(0, f"  {PLACEHOLDER}")
    direction = (
        "minimize           # or maximize" if facts.minimizes else "maximize           # or minimize, for a loss"
    )
    return _TEMPLATE.format(
        script=called,
        file=_scalar(str(file)),
        search_space="\n".join(entries),
        command=_scalar(command),
        directory=f"\ntrialCodeDirectory: {_scalar(directory)}" if outside else "",
        direction=direction,
    )


_TEMPLATE = """\
# An experiment with {script}. Written by `proctor config init`; change it as you like.
#   proctor config check {file}    # checks it, starts nothing
#   proctor create {file}          # starts it
# `proctor config schema` has every key.

# What to search. The ranges are guesses from the script: adjust them. `#` in front leaves a parameter out.
searchSpace:
{search_space}

trialCommand: {command}{directory}
trialConcurrency: 1             # trials that run at the same time
maxTrialNumber: 20
# maxExperimentDuration: 8h     # no new trials after that
# maxTrialDuration: 1h          # a trial that runs longer is ended
# trialGpuNumber: 1             # GPUs of each trial

objective:
  direction: {direction}

tuner:
  name: TPE                     # `proctor algo list` shows all

# Ends trials early that do worse than the others; needs report_intermediate_result:
# assessor:
#   name: Medianstop

trainingService:
  platform: local
# On other machines, over SSH (pip install 'proctor[remote]'):
#   platform: remote
#   machineList: [{{host: gpu-1}}, {{host: gpu-2, user: ada}}]
"""


def _entry(parameter: ScriptParameter) -> str:
    name = _scalar(parameter.name)
    return f"{name}: {parameter.space}" if parameter.space else f"# {name}: {{_type: choice, _value: []}}"


def _origin(parameter: ScriptParameter, script: str) -> str:
    default = "" if parameter.default is None else f", default {json.dumps(parameter.default)[:40]}"
    return f"{script}, line {parameter.line}{default}" + ("; REPLACE THE RANGE" if parameter.is_unknown else "")


def _scalar(text: str) -> str:
    """A text as a YAML scalar on one line, which is also safe in a comment."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in ("null", "true", "false") and text == text.strip()
    return text if is_plain else json.dumps(text)


# ---- reading a script ------------------------------------------------------------------------------------------------


def _facts(tree: ast.Module) -> ScriptFacts:
    calls = {name: list(_calls(tree, name)) for name in (ASKS, REPORTS, "merge_parameter")}
    parameters = list(_AskedParameters(tree).find())
    if calls["merge_parameter"] or not parameters:
        parameters += _argparse_options(tree)
    reported = [ast.unparse(value) for call in calls[REPORTS] for value in call.args[:1]]
    named: dict[str, ScriptParameter] = {}
    for parameter in parameters:
        if parameter.name and not parameter.name.startswith("_"):
            named.setdefault(parameter.name, parameter)
    return ScriptFacts(
        tuple(sorted(named.values(), key=lambda parameter: parameter.line)),
        asks=bool(calls[ASKS]),
        reports=bool(calls[REPORTS]),
        minimizes=any(_LOWER_IS_BETTER.search(text) for text in reported),
    )


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """The calls of a function, whatever module it is called through."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node


class _AskedParameters:
    """The parameters that a script reads from what get_next_parameter returns, or whose defaults that replaces."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._calls = set(_calls(tree, ASKS))
        values = [(target.id, value) for target, value in _assignments(tree)]
        self._names = {name for name, value in values if value in self._calls}
        self._dictionaries = {name: value for name, value in values if isinstance(value, ast.Dict)}
        self._functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def find(self) -> Iterator[ScriptParameter]:
        """In no certain order, some of them several times."""
        for node in ast.walk(self._tree):
            match node:
                case ast.Subscript(value=value, slice=ast.Constant(value=str(name))) if self._is_asked(value):
                    yield ScriptParameter(name, node.lineno, is_required=True)
                case ast.Call(
                    func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(name)), *rest]
                ) if self._is_asked(value):
                    yield ScriptParameter(name, node.lineno, _literal(rest[0]) if rest else None)
                case ast.Call(func=ast.Attribute(value=known, attr="update"), args=[value]) if self._is_asked(value):
                    yield from self._defaults(known)
                case ast.Dict(keys=keys, values=values) if None in keys:
                    unpacked = [value for key, value in zip(keys, values, strict=True) if key is None]
                    if any(map(self._is_asked, unpacked)):
                        for value in (node, *unpacked):
                            yield from self._defaults(value)
                case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                    if self._is_asked(left) or self._is_asked(right):
                        yield from self._defaults(left)
                        yield from self._defaults(right)
                case ast.Call(func=ast.Name(id=called), keywords=keywords) if called in self._functions:
                    if any(keyword.arg is None and self._is_asked(keyword.value) for keyword in keywords):
                        yield from self._passed_to(self._functions[called], node)

    def _is_asked(self, node: ast.expr) -> bool:
        return node in self._calls or (isinstance(node, ast.Name) and node.id in self._names)

    def _defaults(self, node: ast.expr) -> Iterator[ScriptParameter]:
        """The keys of a dictionary, or of the one that a name stands for."""
        yield from _keys(node if isinstance(node, ast.Dict) else self._dictionaries.get(getattr(node, "id", "")))

    def _passed_to(self, function: ast.FunctionDef, call: ast.Call) -> Iterator[ScriptParameter]:
        """The parameters of a function that a call leaves to `**parameters`."""
        given = {keyword.arg for keyword in call.keywords}
        left = list(_arguments(function))[len(call.args) :]
        yield from (argument for argument in left if argument.name not in given)


def _assignments(tree: ast.Module) -> Iterator[tuple[ast.Name, ast.expr]]:
    """What is assigned to plain names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets if isinstance(target, ast.Name))


def _keys(node: ast.Dict | None) -> Iterator[ScriptParameter]:
    for key, value in zip(node.keys, node.values, strict=True) if node else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield ScriptParameter(key.value, key.lineno, _literal(value))


def _arguments(function: ast.FunctionDef) -> Iterator[ScriptParameter]:
    """The parameters of a function by name, with their defaults."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(function.args.defaults))
    pairs = [*zip(positional, [*defaults, *function.args.defaults], strict=True)]
    for argument, default in [*pairs, *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]:
        yield ScriptParameter(argument.arg, argument.lineno, _literal(default))


def _argparse_options(tree: ast.Module) -> Iterator[ScriptParameter]:
    """The options of argparse; positional arguments are no parameters of a search."""
    for call in _calls(tree, "add_argument"):
        flags = [_literal(argument) for argument in call.args]
        long = next((flag for flag in flags if isinstance(flag, str) and flag.startswith("--")), None)
        if long is None:
            continue
        given: Mapping[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in call.keywords}
        name = _literal(given.get("dest")) or long.lstrip("-").replace("-", "_")
        choices = given.get("choices")
        values = [_literal(item) for item in choices.elts] if isinstance(choices, ast.List | ast.Tuple) else []
        default = _literal(given.get("default"))
        if getattr(given.get("type"), "id", "") == "float" and isinstance(default, int):
            default = float(default)
        known = () if None in values else tuple(dict.fromkeys(values))
        yield ScriptParameter(str(name), call.lineno, default, known, is_flag="action" in given)


def _literal(node: ast.expr | None) -> Any:
    """The number, truth value or text that an expression is; None for any other."""
    try:
        value = None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    is_finite = not isinstance(value, float) or abs(value) < float("inf")
    return value if isinstance(value, bool | int | float | str) and is_finite else None
