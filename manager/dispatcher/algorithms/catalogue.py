"""Every algorithm that is offered, and every NNI name that is not, with what to use instead. Data only."""

from dataclasses import dataclass, field

from proctor.manager.dispatcher.algorithms.arguments import Argument

TUNER = "tuner"
ASSESSOR = "assessor"
OPTIMIZE_MODE = "optimize_mode"
"""The class argument by which NNI's algorithms learn which values are better."""

_UNIFORM_TYPES = ("choice", "randint", "uniform", "quniform", "loguniform", "qloguniform")
_ALL_TYPES = (*_UNIFORM_TYPES, "normal", "qnormal", "lognormal", "qlognormal")
_NO_EFFECT = "accepted for NNI's sake, without effect"


@dataclass(frozen=True)
class Builtin:
    """One built-in algorithm."""

    kind: str
    """"tuner" or "assessor"."""
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
    extra: str | None = None
    """The optional dependency group of the package that it needs."""
    modules: tuple[str, ...] = field(default=())
    """The importable modules of that extra."""

    @property
    def default_mode(self) -> str:
        """NNI's default of `optimize_mode`, which holds where a configuration does not say which values are better."""
        return next(str(argument.default) for argument in self.arguments if argument.name == OPTIMIZE_MODE)


def _mode(default: str, description: str = "which values are better, if objective does not say it") -> Argument:
    return Argument(OPTIMIZE_MODE, str, default, description, choices=("minimize", "maximize"))


_SEED = Argument("seed", int, None, "instead of the experiment's seed", optional=True)
_IDLE_MODE = _mode("maximize", _NO_EFFECT)

_TPE_ARGS = Argument(
    "tpe_args", dict, None, "details of the estimator", optional=True,
    inner=(
        Argument("constant_liar_type", str, "best", "anything but null: running trials count as bad",
                 choices=("best", "worst", "mean"), optional=True),
        Argument("n_startup_jobs", int, 20, "random trials before the estimator takes over", minimum=0),
        Argument("n_ei_candidates", int, 24, "candidates compared for each suggestion", minimum=1),
        Argument("linear_forgetting", int, 25, _NO_EFFECT, minimum=0),
        Argument("prior_weight", float, 1.0, _NO_EFFECT, minimum=0),
        Argument("gamma", float, 0.25, _NO_EFFECT, minimum=0),
    ),
)  # fmt: skip

BUILTINS = (
    Builtin(TUNER, "TPE", "tuners.tpe:TpeTuner", "Tree-structured Parzen estimator",
            (_mode("minimize"), _SEED, _TPE_ARGS), nested=True),
    Builtin(TUNER, "Random", "tuners.random_search:RandomTuner", "independent draws, no parameters twice",
            (_SEED, _IDLE_MODE), nested=True, directed=False),
    Builtin(TUNER, "GridSearch", "tuners.grid_search:GridSearchTuner", "every combination, ever finer",
            (_IDLE_MODE,), nested=True, directed=False),
    Builtin(TUNER, "Batch", "tuners.batch:BatchTuner", "the parameter sets of one list, in order",
            (_IDLE_MODE,), types=("choice",), directed=False, literal=True, aliases=("BatchTuner",)),
    Builtin(TUNER, "Evolution", "tuners.evolution:EvolutionTuner", "mutates the better of two good trials",
            (_mode("maximize"), Argument("population_size", int, 32, "how many good trials are parents", minimum=1)),
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
    ),
    Builtin(TUNER, "CmaEs", "tuners.cmaes:CmaEsTuner", "covariance matrix adaptation",
            (_mode("maximize"), _SEED,
             Argument("cold_start_num", int, 1, "random trials before the strategy takes over", minimum=1)),
            aliases=("CMA-ES", "CMAES"), extra="cmaes", modules=("cmaes",)),
    Builtin(ASSESSOR, "Medianstop", "assessors.medianstop:MedianstopAssessor",
            "stops trials whose best is worse than the median of the finished ones at the same step",
            (_mode("maximize"), Argument("start_step", int, 0, "no judgement before this many metrics", minimum=0))),
    Builtin(
        ASSESSOR, "Curvefitting", "assessors.curvefitting:CurvefittingAssessor",
        "stops trials whose predicted end is worse than the best so far",
        (
            Argument("epoch_num", int, 20, "the number of metrics of a whole trial", minimum=1, required=True),
            Argument("start_step", int, 6, "no judgement before this many metrics", minimum=0),
            Argument("threshold", float, 0.95, "share of the best that the prediction has to reach", minimum=0),
            Argument("gap", int, 1, "judge every so many metrics", minimum=1),
            _mode("maximize"),
        ),
        extra="curvefitting", modules=("scipy",),
    ),
)  # fmt: skip

REFUSED = {
    (TUNER, "Anneal"): "TPE",
    (TUNER, "TPE_legacy"): "TPE",
    (TUNER, "SMAC"): "TPE",
    (TUNER, "Metis"): "GP",
    (TUNER, "DNGO"): "GP",
    (TUNER, "PBT"): "Evolution",
    (TUNER, "NetworkMorphism"): "Evolution",
    (TUNER, "PPO"): "Evolution",
    (TUNER, "RegularizedEvolution"): "Evolution",
    (TUNER, "Hyperband"): "TPE with the Medianstop assessor",
    (TUNER, "BOHB"): "TPE with the Medianstop assessor",
}
"""NNI's algorithms that are not offered, and the nearest one that is."""
