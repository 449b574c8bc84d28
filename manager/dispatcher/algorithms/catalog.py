"""Every algorithm that is offered with its arguments, and every NNI name that is not, with what to use instead.

Data, and the check of `classArgs` against it: no algorithm is imported.
"""

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proctor.sdk.scheduler import TIME_TOTAL, TRAINING_ITERATION

TUNER = "tuner"
ASSESSOR = "assessor"
TRIAL_SCHEDULER = "trialScheduler"
KINDS = (TUNER, ASSESSOR, TRIAL_SCHEDULER)
"""Of algorithms, as their sections of a configuration are called."""
CURRENT_RULES = 2
"""The version of the rules by which the built-in algorithms decide in new experiments. An experiment keeps the version
that it began with: a restart replays its inputs, and other rules would make other decisions of them."""
OPTIMIZE_MODE = "optimize_mode"
"""The class argument by which NNI's algorithms learn which values are better."""

_UNIFORM_TYPES = ("choice", "randint", "uniform", "quniform", "loguniform", "qloguniform")
_ALL_TYPES = (*_UNIFORM_TYPES, "normal", "qnormal", "lognormal", "qlognormal")
_NO_EFFECT = "accepted for NNI's sake, without effect"
_MOST = {int: 1_000_000, float: 1e15}
"""What a number may be at most where its argument has no bound of its own: no one needs more, and the memory and the
time of some algorithms grow with it."""
_MOST_SEED = 2**63 - 1
_KIND_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    list: "a list of numbers",
}


@dataclass(frozen=True)
class AlgorithmProblem:
    """One thing wrong with an algorithm's settings. `path` is relative to the algorithm's own mapping; problems of the
    search space with this algorithm start with "search_space"."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}"


@dataclass(frozen=True)
class Argument:
    """One class argument of a built-in algorithm."""

    name: str
    kind: type
    """bool, int, float, str, dict, or list of numbers. A whole number is fine where a float is wanted."""
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    """That of its kind (`_MOST`) where it is None."""
    above: float | None = None
    """What each number of a list must be greater than."""
    required: bool = False
    optional: bool = False
    """Whether null is allowed."""
    inner: tuple["Argument", ...] = ()
    """What a dict argument may hold; anything where this is empty."""
    aliases: tuple[str, ...] = ()
    """Other names under which it is accepted."""


def check_arguments(path: tuple[str | int, ...], given: Any, allowed: Iterable[Argument]) -> list[AlgorithmProblem]:
    """Return what is wrong with the arguments `given`; empty if nothing is."""
    if not isinstance(given, Mapping):
        return [AlgorithmProblem(path, f"expected a mapping, found {given!r}")]
    known = {name: argument for argument in allowed for name in (argument.name, *argument.aliases)}
    problems = [
        AlgorithmProblem((*path, str(name)), unknown_name("argument", str(name), known))
        for name in given
        if name not in known
    ]
    for argument in dict.fromkeys(known.values()):
        names = [name for name in (argument.name, *argument.aliases) if name in given]
        for name in names:
            problems.extend(_check_value((*path, name), given[name], argument))
        for other in names[1:]:
            problems.append(AlgorithmProblem((*path, other), f"is another name of {names[0]}; remove one of them"))
        if argument.required and not names:
            problems.append(AlgorithmProblem(path, f"{argument.name} is missing: {argument.description}"))
    return problems


def check_order(path: tuple[str | int, ...], given: Mapping[str, Any], builtin: "Builtin") -> list[AlgorithmProblem]:
    """Return which of two valid arguments, of which one must not be greater than the other, is."""
    filled = fill_arguments(given, builtin.arguments)
    return [
        AlgorithmProblem((*path, lower if lower in given else upper), message)
        for lower, upper in builtin.ascending
        if filled[lower] > filled[upper]
        for message in [f"{lower} must not be greater than {upper}, found {filled[lower]} and {filled[upper]}"]
    ]


def fill_arguments(given: Mapping[str, Any], allowed: Iterable[Argument]) -> dict[str, Any]:
    """Return all arguments, checked ones as given and the rest by default."""
    filled = {}
    for argument in allowed:
        names = (argument.name, *argument.aliases)
        value = next((given[name] for name in names if name in given), argument.default)
        filled[argument.name] = fill_arguments(value or {}, argument.inner) if argument.inner else value
    return filled


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the nearest known name."""
    names = list(known)
    folded = {candidate.lower().replace("_", ""): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower().replace("_", ""), folded, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {name!r}; did you mean {folded[near[0]]!r}?"
    return f"unknown {what} {name!r}; " + (f"known are {', '.join(names)}" if names else "none is accepted here")


def _check_value(path: tuple[str | int, ...], value: Any, argument: Argument) -> list[AlgorithmProblem]:
    if value is None and argument.optional:
        return []
    if not _has_kind(value, argument.kind):
        return [AlgorithmProblem(path, f"expected {_KIND_NAMES[argument.kind]}, found {_found(value)}")]
    if argument.kind is dict:
        return check_arguments(path, value, argument.inner) if argument.inner else []
    problem = _check_text(value, argument) if argument.kind is str else _check_numbers(value, argument)
    return [AlgorithmProblem(path, f"{problem}, found {_found(value)}")] if problem else []


def _found(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_text(value: str, argument: Argument) -> str:
    if argument.choices and value not in argument.choices:
        return f"expected one of {', '.join(argument.choices)}"
    return "" if value or argument.optional else "must not be empty"


def _check_numbers(value: Any, argument: Argument) -> str:
    if argument.kind is list:
        are_allowed = argument.above is None or all(item > argument.above for item in value)
        return "" if are_allowed else f"expected numbers greater than {argument.above}"
    maximum = _MOST.get(argument.kind) if argument.maximum is None else argument.maximum
    minimum = argument.minimum if argument.minimum is not None or maximum is None else -maximum
    if minimum is not None and value < minimum:
        return f"must be at least {_written(minimum)}"
    if maximum is not None and value > maximum:
        return f"must be at most {_written(maximum)}"
    return ""


def _written(bound: float) -> str:
    return f"{bound:,}".removesuffix(".0")


def _has_kind(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max  # nor NaN
    if kind is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind is list:
        return isinstance(value, (list, tuple)) and all(_has_kind(item, float) for item in value)
    return isinstance(value, kind)


@dataclass(frozen=True)
class Builtin:
    """One built-in algorithm."""

    kind: str
    """One of `KINDS`."""
    name: str
    location: str
    """`module:Class` below this package."""
    summary: str
    arguments: tuple[Argument, ...] = ()
    types: tuple[str, ...] = _ALL_TYPES
    nested: bool = False
    directed: bool = True
    """Whether its work depends on which values are better."""
    literal: bool = False
    """Whether it takes the options of a choice as they stand, even mappings with `_name`."""
    aliases: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    """The parameters that its trials have besides those of the search space."""
    ascending: tuple[tuple[str, str], ...] = ()
    """Pairs of arguments of which the first must not be greater than the second."""
    extra: str | None = None
    """The optional dependency group of the package that it needs."""
    modules: tuple[str, ...] = field(default=())
    """The importable modules of that extra."""
    takes_rules: bool = False
    """Whether its class decides by `rules`, which it gets."""
    changes: Mapping[int, str] = field(default_factory=dict)
    """What it decides otherwise since which version of the rules, each as a clause."""
    scheduled_changes: Mapping[int, str] = field(default_factory=dict)
    """The same, of a tuner under a trial scheduler only."""

    @property
    def default_mode(self) -> str:
        """NNI's default of `optimize_mode`, which holds where a configuration does not say which values are better."""
        return next(str(argument.default) for argument in self.arguments if argument.name == OPTIMIZE_MODE)


def _mode(default: str, description: str = "which values are better, if objective does not say it") -> Argument:
    return Argument(OPTIMIZE_MODE, str, default, description, choices=("minimize", "maximize"))


_SEED = Argument("seed", int, None, "overrides the experiment's seed", maximum=_MOST_SEED, optional=True)
_UNUSED_MODE = _mode("maximize", _NO_EFFECT)


def _time_attr(default: str) -> Argument:
    return Argument(
        "time_attr", str, default, f"what is used up: {TRAINING_ITERATION} (steps), {TIME_TOTAL}, or a reported metric"
    )


_STOP_LAST = Argument("stop_last_trials", bool, True, "whether trials that have used max_t are stopped")
_HYPERBAND = (
    _mode("maximize"),
    _time_attr(TRAINING_ITERATION),
    Argument("max_t", float, 81, "what a trial may use at most", minimum=1),
    Argument(
        "reduction_factor",
        float,
        3,
        "of so many trials one continues, and so many times as far",
        minimum=2,
        maximum=1_000,
    ),
    _STOP_LAST,
    Argument(
        "ray_brackets",
        bool,
        False,
        "whether milestones are rounded as in Ray Tune, where most brackets end before a max_t that is no power of "
        "reduction_factor",
    ),
)
_EXACT_MEANS = "compares with exact means: no trial is stopped by a rounding error"
_HYPERBAND_CHANGES = {2: "trains the last trials of every bracket to max_t"}

_TPE_ARGS = Argument(
    "tpe_args", dict, None, "details of the estimator", optional=True,
    inner=(
        Argument("constant_liar_type", str, "best", "anything but null: running trials count as bad",
                 choices=("best", "worst", "mean"), optional=True),
        Argument("n_startup_jobs", int, 20, "random trials before the estimator takes over", minimum=0),
        Argument("n_ei_candidates", int, 24, "candidates compared for each suggestion", minimum=1, maximum=100_000),
        Argument("linear_forgetting", int, 25, _NO_EFFECT, minimum=0),
        Argument("prior_weight", float, 1.0, _NO_EFFECT, minimum=0),
        Argument("gamma", float, 0.25, _NO_EFFECT, minimum=0),
    ),
)  # fmt: skip

_ETA = Argument(
    "eta",
    int,
    3,
    "each budget is so many times the former one, for the best of so many trials",
    minimum=2,
    maximum=1000,
)

BUILTINS = (
    Builtin(TUNER, "TPE", "tuners.tpe:TpeTuner", "Tree-structured Parzen estimator",
            (_mode("minimize"), _SEED, _TPE_ARGS), nested=True,
            scheduled_changes={2: "learns from paused trials, too"}),
    Builtin(TUNER, "Random", "tuners.random_search:RandomTuner", "independent draws, no parameters twice",
            (_SEED, _UNUSED_MODE), nested=True, directed=False),
    Builtin(TUNER, "GridSearch", "tuners.grid_search:GridSearchTuner", "every combination, ever finer",
            (_UNUSED_MODE,), nested=True, directed=False),
    Builtin(TUNER, "Batch", "tuners.batch:BatchTuner", "the parameter sets of one list, in order",
            (_UNUSED_MODE,), types=("choice",), directed=False, literal=True, aliases=("BatchTuner",)),
    Builtin(TUNER, "Evolution", "tuners.evolution:EvolutionTuner", "mutates the better of two good trials",
            (_mode("maximize"), Argument("population_size", int, 32, "how many good trials are parents", minimum=1,
                                         maximum=100_000)),
            nested=True),
    Builtin(
        TUNER, "GP", "tuners.gp:GpTuner", "Gaussian process",
        (
            _mode("maximize"),
            _SEED,
            Argument("utility", str, "ei", _NO_EFFECT, choices=("ei", "ucb", "poi")),
            Argument("kappa", float, 5.0, _NO_EFFECT),
            Argument("xi", float, 0.0, _NO_EFFECT),
            Argument("nu", float, 2.5, _NO_EFFECT),
            Argument("alpha", float, 1e-6, _NO_EFFECT),
            Argument("cold_start_num", int, 10, "random trials before the model takes over", minimum=1),
            Argument("selection_num_warm_up", int, 100_000, _NO_EFFECT, minimum=1),
            Argument("selection_num_starting_points", int, 250, _NO_EFFECT, minimum=1),
        ),
        types=_UNIFORM_TYPES, aliases=("GPTuner",), extra="gp", modules=("torch", "scipy"),
        takes_rules=True, scheduled_changes={2: "learns from trials that were paused or stopped, too"},
    ),
    Builtin(TUNER, "CmaEs", "tuners.cmaes:CmaEsTuner", "covariance matrix adaptation",
            (_mode("maximize"), _SEED,
             Argument("cold_start_num", int, 1, "random trials before the strategy takes over", minimum=1)),
            aliases=("CMA-ES", "CMAES"), extra="cmaes", modules=("cmaes",)),
    Builtin(
        TUNER, "Hyperband", "tuners.hyperband:HyperbandTuner",
        "random trials with a small budget, the best again with a larger one",
        (
            _mode("maximize"),
            _SEED,
            Argument("R", int, 60, "the largest budget", minimum=2),
            _ETA,
            Argument("exec_mode", str, "parallelism", "whether a bracket begins before the former one has ended",
                     choices=("parallelism", "serial")),
        ),
        aliases=("HyperbandAdvisor",), adds=("TRIAL_BUDGET",), ascending=(("eta", "R"),),
    ),
    Builtin(
        TUNER, "BOHB", "tuners.bohb:BohbTuner", "Hyperband with a model of the results",
        (
            _mode("maximize"),
            _SEED,
            Argument("min_budget", int, 1, "the smallest budget", minimum=1),
            Argument("max_budget", int, 3, "the largest budget", minimum=1),
            _ETA,
            Argument("min_points_in_model", int, None, "no model of fewer results, nor of as many as parameters",
                     minimum=0, optional=True),
            Argument("top_n_percent", int, 15, "percentage of the results that are good", minimum=1, maximum=99),
            Argument("num_samples", int, 64, "candidates compared for each suggestion", minimum=1, maximum=100_000),
            Argument("random_fraction", float, 1 / 3, "share of random suggestions", minimum=0, maximum=1),
            Argument("bandwidth_factor", float, 3.0, "how much wider candidates are drawn than the model is",
                     minimum=0),
            Argument("min_bandwidth", float, 1e-3, "the smallest width of the model, as a share of an axis",
                     minimum=0),
            Argument("config_space", str, None, _NO_EFFECT, optional=True),
        ),
        aliases=("BOHBAdvisor",), adds=("TRIAL_BUDGET",), ascending=(("min_budget", "max_budget"),),
    ),
    Builtin(
        TUNER, "PBT", "tuners.pbt:PbtTuner", "the worst of a population continue from the best",
        (
            _mode("maximize"),
            _SEED,
            Argument("all_checkpoint_dir", str, None, "the folder of all checkpoints", optional=True),
            Argument("population_size", int, 10, "trials of a generation", minimum=2, maximum=100_000),
            Argument("factor", float, 0.2, "size of a step, as a share of the range", minimum=0, maximum=1,
                     aliases=("factors",)),
            Argument("resample_probability", float, 0.25, "how often a parameter is drawn again instead",
                     minimum=0, maximum=1),
            Argument("fraction", float, 0.2, "share that is replaced, and share that replaces it",
                     minimum=0, maximum=1),
        ),
        aliases=("PBTTuner",), adds=("load_checkpoint_dir", "save_checkpoint_dir"),
    ),
    Builtin(ASSESSOR, "Medianstop", "assessors.medianstop:MedianstopAssessor",
            "stops trials whose best is worse than the median of the finished ones at the same step",
            (_mode("maximize"), Argument("start_step", int, 0, "no judgment before this many metrics", minimum=0)),
            takes_rules=True, changes={2: _EXACT_MEANS}),
    Builtin(
        ASSESSOR, "Curvefitting", "assessors.curvefitting:CurvefittingAssessor",
        "stops trials whose predicted end is worse than the best so far",
        (
            Argument("epoch_num", int, 20, "the number of metrics of a whole trial", minimum=1, required=True),
            Argument("start_step", int, 6, "no judgment before this many metrics", minimum=0),
            Argument("threshold", float, 0.95, "share of the best that the prediction has to reach", minimum=0),
            Argument("gap", int, 1, "judge after every N metrics", minimum=1),
            _mode("maximize"),
        ),
        extra="curvefitting", modules=("scipy",),
    ),
    Builtin(
        TRIAL_SCHEDULER, "ASHA", "schedulers.asha:AshaScheduler",
        "successive halving without waiting: a trial continues only among the best of its rung",
        (
            _mode("maximize"),
            Argument("type", str, "stopping", "what becomes of the others: they are stopped, or paused and perhaps "
                     "promoted later", choices=("stopping", "promotion")),
            _time_attr(TRAINING_ITERATION),
            Argument("max_t", float, 100, "what a trial may use at most", minimum=1),
            Argument("grace_period", float, 1, "what each trial may use before it is judged: the lowest rung",
                     minimum=1),
            Argument("reduction_factor", float, 4, "of so many trials one continues, and so many times as far",
                     minimum=2, maximum=1000),
            Argument("brackets", int, 1, "how many brackets, each with a higher lowest rung", minimum=1),
            _STOP_LAST,
        ),
        aliases=("AsyncHyperBand", "AsyncHyperBandScheduler", "ASHAScheduler"),
    ),
    Builtin(
        TRIAL_SCHEDULER, "HyperBand", "schedulers.hyperband:HyperBandScheduler",
        "successive halving in brackets: trials are paused until the whole rung is there", _HYPERBAND,
        aliases=("HyperBandScheduler",), takes_rules=True, changes=_HYPERBAND_CHANGES,
    ),
    Builtin(
        TRIAL_SCHEDULER, "BOHB", "schedulers.hyperband:BohbScheduler",
        "HyperBand for a tuner that learns from trials that were ended early, such as TPE", _HYPERBAND,
        aliases=("HyperBandForBOHB", "hb_bohb"), takes_rules=True, changes=_HYPERBAND_CHANGES,
    ),
    Builtin(
        TRIAL_SCHEDULER, "MedianStopping", "schedulers.median_stopping:MedianStoppingScheduler",
        "stops trials whose best is worse than the median of the others' means",
        (
            _mode("maximize"),
            _time_attr(TIME_TOTAL),
            Argument("grace_period", float, 60.0, "what each trial may use before it is judged", minimum=0),
            Argument("min_samples_required", int, 3, "no judgment by fewer other trials", minimum=1),
            Argument("hard_stop", bool, True, "false: poor trials are paused, and continue when there is a free place"),
        ),
        aliases=("MedianStoppingRule", "median_stopping_rule"),
        takes_rules=True,
        changes={2: _EXACT_MEANS},
    ),
    Builtin(
        TRIAL_SCHEDULER, "PBT", "schedulers.pbt:PbtScheduler",
        "population based training: poor trials continue from good ones, with other hyperparameters",
        (
            _mode("maximize"),
            _time_attr(TIME_TOTAL),
            Argument("population_size", int, 10, "how many trials there are", minimum=2, maximum=100_000),
            Argument("perturbation_interval", float, 60.0, "what a trial uses between two comparisons", minimum=0),
            Argument("burn_in_period", float, 0.0, "no comparison before this", minimum=0),
            Argument("hyperparam_mutations", dict, None, "what is explored, and from which values; without it the "
                     "whole search space", optional=True),
            Argument("quantile_fraction", float, 0.25, "which share are good ones, and which are poor ones",
                     minimum=0, maximum=0.5),
            Argument("resample_probability", float, 0.25, "how often a value is drawn anew instead of changed",
                     minimum=0, maximum=1),
            Argument("perturbation_factors", list, (1.2, 0.8), "by which numbers are multiplied", above=0),
            Argument("synch", bool, False, "whether all trials wait for each other at each comparison"),
        ),
        aliases=("PopulationBasedTraining",),
        takes_rules=True,
        changes={2: "moves a whole or stepped number one step where a factor would leave it as it was"},
    ),
)  # fmt: skip

REFUSED = {
    (TUNER, "Anneal"): "TPE",
    (TUNER, "TPE_legacy"): "TPE",
    (TUNER, "SMAC"): "TPE",
    (TUNER, "Metis"): "GP",
    (TUNER, "DNGO"): "GP",
    (TUNER, "NetworkMorphism"): "Evolution",
    (TUNER, "PPO"): "Evolution",
    (TUNER, "RegularizedEvolution"): "Evolution",
}
"""NNI's algorithms that are not offered, and the nearest one that is."""

ADDED_PARAMETERS = frozenset(name for builtin in BUILTINS for name in builtin.adds)
"""Parameters of trials that are part of no search space."""
