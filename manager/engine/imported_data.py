"""What a person gives to a tuner: imported results, and parameters of trials added by hand.

They are judged before they become an input: the parameters by the search space (a custom tuner judges its own), values
by whether they hold a number. NNI's exports hold metrics as JSON text, `"{\\"default\\": 0.9}"`, which is decoded.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.dispatcher.algorithms.base import DEFAULT_KEY
from proctor.manager.dispatcher.algorithms.registry import fit_parameters, read_search_space
from proctor.manager.errors import BadRequest
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.statements import to_words
from proctor.sdk.json_input import RefusedValue, clean_value
from proctor.sdk.metrics import from_json_word
from proctor.sdk.space import SearchSpaceError
from proctor.sdk.space.parameters import shown

MOST_PROBLEMS = 20
"""Rows of an import that an error lists."""
_LAYERS = 3
"""How often a value may have been written as JSON text."""


@dataclass
class Import:
    """The rows of an import that the tuner receives, and how many it does not."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    """Without a value."""
    outside: int = 0
    """Outside of the search space, where skipping those was asked for."""


def read_import(experiment: ExperimentRow, rows: Sequence[Mapping[str, Any]], *, skip_outside: bool = False) -> Import:
    """Rows of {"parameter", "value"} as the tuner receives them. Raises BadRequest that lists every row that it cannot.

    :param skip_outside: leave out rows whose parameters are outside of the search space instead.
    """
    judge = _Judge(experiment)
    taken = Import()
    problems: list[str] = []
    for number, row in enumerate(rows, 1):
        value = decode_value(row["value"])
        if value is None:
            taken.skipped += 1
            continue
        refusal = judge.why_no_result(value)
        try:
            parameters = judge.fit(row["parameter"])
        except SearchSpaceError as error:
            if skip_outside and not refusal:
                taken.outside += 1
                continue
            clauses = [f"parameter {each}" if each.path else f"parameter: {each}" for each in error.problems]
            refusal = "; ".join(filter(None, [refusal, *clauses]))
        if refusal:
            problems.append(f"row {number}: {refusal}")
        else:
            taken.rows.append({"parameter": parameters, "value": value})
    if problems:
        raise _refused(problems, len(rows))
    return taken


def read_parameters(experiment: ExperimentRow, parameters: Any) -> Any:
    """Parameters of a trial that is added by hand, as the tuner would propose them. Raises BadRequest."""
    try:
        return _Judge(experiment).fit(parameters)
    except SearchSpaceError as error:
        text = f"the parameters are outside of the search space of experiment {experiment.id}: {error}"
        raise BadRequest(text, error.problems) from error


def read_changed_parameters(experiment: ExperimentRow, parameters: Any, *, changed: Collection[str]) -> tuple[Any, str]:
    """Parameters that an earlier trial had, some of them changed, and how they are outside of the search space, as a
    clause: it may have been changed since. Raises BadRequest where a changed one is.

    :param changed: names of parameters, of what is in a nested choice as tables have them.
    """
    try:
        return _Judge(experiment).fit(parameters), ""
    except SearchSpaceError as error:
        names = {name.partition(".")[0] for name in changed} | set(changed)
        if any(problem.path and str(problem.path[0]) in names for problem in error.problems):
            text = f"the parameters are outside of the search space of experiment {experiment.id}: {error}"
            raise BadRequest(text, error.problems) from error
        return parameters, str(error)


def decode_value(value: Any) -> Any:
    """A metric that was written as JSON text, once or twice, as what the text says. Words for NaN and infinities stay,
    and so does any other text."""
    decoded = value
    for _ in range(_LAYERS):
        if not isinstance(decoded, str) or isinstance(from_json_word(decoded), float):
            return decoded
        try:
            decoded = to_words(clean_value(json.loads(decoded)))
        except (ValueError, RecursionError, RefusedValue):
            return decoded
    return decoded


class _Judge:
    """Knows an experiment's tuner and search space."""

    def __init__(self, experiment: ExperimentRow) -> None:
        self._tuner = experiment.config["tuner"]
        try:
            self._space = read_search_space(self._tuner, experiment.search_space, is_new=False)
        except SearchSpaceError as error:
            raise BadRequest(f"the search space of experiment {experiment.id} is not valid: {error}") from error

    def fit(self, parameters: Any) -> Any:
        return fit_parameters(self._tuner, self._space, parameters)

    def why_no_result(self, value: Any) -> str:
        """A clause about a value in which a built-in tuner finds no number, or ''."""
        if self._space is None:
            return ""
        number = value.get(DEFAULT_KEY) if isinstance(value, Mapping) else value
        if isinstance(from_json_word(number), int | float) and not isinstance(number, bool):
            return ""
        return f'value: expected a number, or a mapping with a number under "default", found {shown(value)}'


def _refused(problems: list[str], rows: int) -> BadRequest:
    listed = "; ".join(problems[:MOST_PROBLEMS])
    more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
    text = f"{len(problems)} of {rows} rows cannot be imported, so none was: {listed}{more}"
    return BadRequest(text, problems[:MOST_PROBLEMS])
