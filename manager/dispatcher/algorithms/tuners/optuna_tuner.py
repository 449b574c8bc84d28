"""A tuner around one of Optuna's samplers.

What the tuner knows is here; the study that the sampler sees is made of it when the sampler is asked for the first
time (`optuna_study`), with the same trials in the same order.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proctor.manager.dispatcher.algorithms.base import (
    DistinctParameters,
    Parameters,
    Suggestion,
    TunerAlgorithm,
    loss_of,
    suggestion_rng,
    suggestion_seed,
)
from proctor.manager.dispatcher.algorithms.tuners.flat_space import (
    AskAxis,
    FlatAxis,
    FlatParameters,
    FlatSpace,
    OptunaDistribution,
    OptunaSampler,
)
from proctor.sdk.metrics import from_json_word, to_json_word
from proctor.sdk.space import SearchSpace

if TYPE_CHECKING:
    from proctor.manager.dispatcher.algorithms.tuners.optuna_study import OptunaStudy

RUNNING, COMPLETE, FAIL, PRUNED = "RUNNING", "COMPLETE", "FAIL", "PRUNED"
"""States of the study's trials, as Optuna names them."""
_RESULTS = frozenset({COMPLETE, PRUNED})


@dataclass
class _StudyTrial:
    flat: FlatParameters
    state: str
    value: float | None = None
    steps: dict[int, float] | None = None


class _StudyTrials:
    """The trials of the study, which is made when it is opened; until then they are only kept."""

    def __init__(self, space: FlatSpace) -> None:
        self._space = space
        self._kept: list[_StudyTrial] = []
        self._study: OptunaStudy | None = None
        self._count = 0
        self.results = 0
        """How many are completed or pruned: what a model is made of."""

    def add(
        self, flat: FlatParameters, state: str, *, value: float | None = None, steps: dict[int, float] | None = None
    ) -> int:
        """Add a trial; return its number."""
        if self._study is None:
            self._kept.append(_StudyTrial(flat, state, value, steps))
        else:
            self._study.add(flat, state, value=value, steps=steps)
        self.results += state in _RESULTS
        self._count += 1
        return self._count - 1

    def end(self, number: int, value: float | None) -> None:
        """Complete a running trial; without a value it has failed."""
        if self._study is None:
            trial = self._kept[number]
            trial.state, trial.value = FAIL if value is None else COMPLETE, value
        else:
            self._study.end(number, value)
        self.results += value is not None

    def put(
        self, number: int, state: str, *, value: float | None = None, steps: dict[int, float] | None = None
    ) -> None:
        """Replace the result of a trial, or give it one."""
        if self._study is None:
            trial = self._kept[number]
            before, trial.state, trial.value, trial.steps = trial.state, state, value, steps
        else:
            before = self._study.put(number, state, value=value, steps=steps)
        self.results += before not in _RESULTS

    def open(self) -> "OptunaStudy":
        """The study. Imports Optuna."""
        if self._study is None:
            from proctor.manager.dispatcher.algorithms.tuners.optuna_study import OptunaStudy

            self._study = OptunaStudy(self._space)
            for trial in self._kept:
                self._study.add(trial.flat, trial.state, value=trial.value, steps=trial.steps)
            self._kept.clear()
        return self._study

    def ask(self, sampler: OptunaSampler) -> tuple[int, Parameters, FlatParameters]:
        """Add a running trial that the sampler chooses: its number, its parameters, and these as flat values."""
        parameters, flat = self.open().ask(sampler)
        self._count += 1
        return self._count - 1, parameters, flat


@dataclass
class _Known:
    """One parameter set the tuner knows of. `loss` is None until its result comes; `failed` if none will."""

    parameters: Parameters
    flat: FlatParameters | None
    number: int | None = None
    """Its number in the study; None if it does not belong to the search space."""
    loss: float | None = None
    failed: bool = False
    pruned_at: int | None = None
    """The step of `loss`, where that is no full result."""
    pruned_number: int | None = None
    """The number of the pruned trial of the study that took its place."""
    study_value: float | None = None
    """What the study has for `loss`."""
    in_place: bool = False
    """Whether its trial of the study got its result before it ended, because it was paused, and gets others there."""


class OptunaTuner(TunerAlgorithm):
    """Keeps the study; subclasses choose the sampler."""

    takes_pruned_as_full = False
    """Whether the sampler learns from full results only: a pruned trial is made one."""

    def __init__(self, *, seed: int, optimize_mode: str) -> None:
        self._seed = seed
        self._maximize = optimize_mode == "maximize"
        self._known: list[_Known] = []
        self._pending: dict[int, _Known] = {}

    @abstractmethod
    def make_sampler(self, seed: int, distributions: dict[str, OptunaDistribution]) -> OptunaSampler:
        """Return a new sampler. `distributions` are those of the axes that every parameter set has."""

    def draw_at_random(self, seed: int, results: int) -> AskAxis | None:
        """Return what decides the axes exactly as the sampler of this seed would; None if that takes a model.

        :param results: how many trials of the study have one.
        """
        return None

    def update_search_space(self, space: SearchSpace) -> None:
        """Begin a new study with what is known and belongs to `space`."""
        self._flat_space = FlatSpace(space)
        self._distinct = DistinctParameters(space)
        self._trials = _StudyTrials(self._flat_space)
        for known in self._known:
            known.flat = self._flattened(known.parameters)
            self._enter(known)

    def suggest(self, parameter_id: int) -> Suggestion:
        """Ask the sampler; in a finite space, something unknown at random if it repeats itself."""
        self._distinct.require_room()
        known = self._asked(parameter_id)
        rng = suggestion_rng(self._seed, parameter_id)
        proposals = iter([known.parameters])
        space = self._flat_space.space
        parameters = self._distinct.draw(rng, lambda: next(proposals, None) or space.sample(rng))
        if parameters is not known.parameters:
            assert known.number is not None, "it was added when it was asked for"
            self._trials.end(known.number, None)
            known = _Known(parameters, self._flat_space.flatten(parameters))
            self._enter(known)
        self._remember(parameter_id, known)
        return Suggestion(parameters, known.flat)

    def restore(self, parameter_id: int, parameters: Parameters, state: Any) -> None:
        """Enter an earlier suggestion as a running trial."""
        known = _Known(parameters, state)
        self._enter(known)
        self._remember(parameter_id, known)

    def receive_result(self, parameter_id: int, parameters: Parameters, value: float) -> None:
        """Complete the running trial."""
        known = self._pending.pop(parameter_id, None)
        if known is None:
            self.import_data(parameters, value)
            return
        known.loss, known.pruned_at = loss_of(value, self._maximize), None
        self._finish(known)

    def receive_pruned(self, parameter_id: int, parameters: Parameters, value: float, step: int) -> None:
        """Enter the trial as a pruned one: Optuna ranks it behind full results, and among its like by step first."""
        known = self._pending.pop(parameter_id, None)
        if known is not None:
            known.loss, known.pruned_at = loss_of(value, self._maximize), step
            known.in_place = known.in_place or self.takes_pruned_as_full
            self._finish(known)

    def trial_paused(self, parameter_id: int, value: float, step: int) -> None:
        """Enter the trial as a pruned one for now: it is not running, and what it has reached is worth knowing."""
        known = self._pending.get(parameter_id)
        if known is not None:
            known.loss, known.pruned_at, known.in_place = loss_of(value, self._maximize), step, True
            self._finish(known)

    def trial_end(self, parameter_id: int, succeeded: bool) -> None:
        """Close a trial that ended without a result. One that was paused before keeps what it had then."""
        known = self._pending.pop(parameter_id, None)
        if known is not None and known.loss is None:
            known.failed = True
            self._finish(known)

    def import_data(self, parameters: Parameters, value: float) -> None:
        """Enter a finished trial, if it belongs to the search space."""
        known = _Known(parameters, self._flattened(parameters), loss=loss_of(value, self._maximize))
        self._enter(known)
        self._known.append(known)

    def accept_customized(self, parameter_id: int, parameters: Parameters) -> None:
        """Enter the user's trial as a running one."""
        known = _Known(parameters, self._flattened(parameters))
        self._enter(known)
        self._remember(parameter_id, known)

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, and in which order the study has it."""
        places = [(known.number, index) for index, known in enumerate(self._known) if known.number is not None]
        pruned = [
            (known.pruned_number, ~index) for index, known in enumerate(self._known) if known.pruned_number is not None
        ]
        indexes = {id(known): index for index, known in enumerate(self._known)}
        return {
            "known": [
                [known.parameters, known.flat, to_json_word(known.loss), known.failed, known.pruned_at,
                 to_json_word(known.study_value), known.in_place]
                for known in self._known
            ],
            "order": [index for _, index in sorted([*places, *pruned])],
            "pending": [[parameter_id, indexes[id(known)]] for parameter_id, known in self._pending.items()],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Build the study again, trial by trial in the same order."""
        for parameters, flat, loss, failed, pruned_at, study_value, *in_place in state["known"]:
            value = from_json_word(study_value)
            known = _Known(parameters, flat, None, from_json_word(loss), failed, pruned_at, study_value=value)
            known.in_place = any(in_place)  # a state of an earlier version does not say it
            self._known.append(known)
            self._distinct.add(parameters)
        self._pending = {parameter_id: self._known[index] for parameter_id, index in state["pending"]}
        for index in state["order"]:
            known = self._known[index if index >= 0 else ~index]
            assert known.flat is not None, "only what belongs to the search space is in the study"
            if index < 0:
                assert known.pruned_at is not None, "this is the pruned one"
                steps = {known.pruned_at: known.study_value or 0.0}
                known.pruned_number = self._trials.add(known.flat, PRUNED, steps=steps)
            elif known.in_place:
                result, full, at_steps = self._result_of(known)
                known.number = self._trials.add(known.flat, result, value=full, steps=at_steps)
            elif known.failed or known.pruned_at is not None:
                known.number = self._trials.add(known.flat, FAIL)
            elif known.loss is None:
                known.number = self._trials.add(known.flat, RUNNING)
            else:
                known.number = self._trials.add(known.flat, COMPLETE, value=known.study_value)

    def _remember(self, parameter_id: int, known: _Known) -> None:
        self._distinct.add(known.parameters)
        self._known.append(known)
        self._pending[parameter_id] = known

    def _asked(self, parameter_id: int) -> _Known:
        seed = suggestion_seed(self._seed, parameter_id)
        draw = self.draw_at_random(seed, self._trials.results)
        if draw is None:
            sampler = self.make_sampler(seed, self._trials.open().common_distributions)
            number, parameters, flat = self._trials.ask(sampler)
            return _Known(parameters, flat, number)
        flat = {}

        def ask(axis: FlatAxis) -> Any:
            flat[axis.name] = draw(axis)
            return flat[axis.name]

        parameters = self._flat_space.compose(ask)
        return _Known(parameters, flat, self._trials.add(flat, RUNNING))

    def _flattened(self, parameters: Parameters) -> FlatParameters | None:
        try:
            return self._flat_space.flatten(parameters)
        except (ValueError, TypeError, AttributeError):
            return None

    def _enter(self, known: _Known) -> None:
        """Make a running trial of the study, and finish it if the result is there already."""
        self._distinct.add(known.parameters)
        known.number = known.pruned_number = None
        if known.flat is None:
            return
        known.number = self._trials.add(known.flat, RUNNING)
        if known.loss is not None or known.failed:
            self._finish(known)

    def _finish(self, known: _Known) -> None:
        """Complete the study's trial, if it is there."""
        if known.number is None:
            return
        if known.in_place and known.loss is not None:
            known.study_value = self.study_loss(known.loss, is_pruned=known.pruned_at is not None)
            state, value, steps = self._result_of(known)
            self._trials.put(known.number, state, value=value, steps=steps)
            return
        if known.failed or known.loss is None or known.pruned_at is not None:
            self._trials.end(known.number, None)
        else:
            known.study_value = self.study_loss(known.loss)
            self._trials.end(known.number, known.study_value)
        if known.pruned_at is not None:
            self._enter_pruned(known, known.pruned_at)

    def _enter_pruned(self, known: _Known, step: int) -> None:
        """A running trial takes intermediate values only while it is being asked for: so it fails, and one that was
        pruned takes its place."""
        assert known.flat is not None, "only what is in the study is finished there"
        assert known.loss is not None, "what was pruned had a value"
        known.study_value = self.study_loss(known.loss)
        known.pruned_number = self._trials.add(known.flat, PRUNED, steps={step: known.study_value})

    def _result_of(self, known: _Known) -> tuple[str, float | None, dict[int, float] | None]:
        """The state, the value and the steps of a trial of the study that has its result in place."""
        if known.pruned_at is None or self.takes_pruned_as_full:
            return COMPLETE, known.study_value, None
        return PRUNED, None, {known.pruned_at: known.study_value or 0.0}

    def study_loss(self, loss: float, *, is_pruned: bool = False) -> float:
        """The loss for the study; infinity stands for results that are no numbers."""
        return loss
