"""`import nni` for trials and tuners written for NNI 3.0, answered by Proctor.

The trial's calls are here at once; everything else is loaded when it is first named. What NNI offers and Proctor does
not (architecture search, compression, annotations) is refused with a sentence instead of a puzzling error.

Entry: `import nni`. Reading order: trial, tuner, assessor, utils, documents (`nni.dump` and `nni.load`), experiment.
"""

import sys

from proctor.sdk.errors import NoMoreTrialError
from proctor.sdk.trial import (
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_sequence_id,
    get_trial_id,
    report_final_result,
    report_intermediate_result,
)

__version__ = "3.0"

__all__ = [
    "ClassArgsValidator",
    "NoMoreTrialError",
    "dump",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_next_parameters",
    "get_sequence_id",
    "get_trial_id",
    "load",
    "report_final_result",
    "report_intermediate_result",
    "trace",
]

get_next_parameters = get_next_parameter

_OFFERED = (
    "Proctor's nni has the trial's calls, nni.dump/load/trace, nni.utils.merge_parameter, nni.tuner, nni.assessor and "
    "nni.experiment"
)
_HOME_OF = {
    "ClassArgsValidator": "nni.utils",
    "Experiment": "nni.experiment",
    "dump": "nni.documents",
    "load": "nni.documents",
    "trace": "nni.documents",
}
_SUBMODULES = {"assessor", "experiment", "trial", "tuner", "utils"}
_SEARCH_SPACE_CALLS = {
    "choice",
    "function_choice",
    "lognormal",
    "loguniform",
    "normal",
    "qlognormal",
    "qloguniform",
    "qnormal",
    "quniform",
    "randint",
    "uniform",
}


class _RefusingFinder:
    """Asked last, when no module of this package has the name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Answer for names under `nni.` only."""
        if name == "nni.runtime" or name.startswith("nni.runtime."):
            raise ImportError(
                f"{name} is not offered: it is the inside of NNI. Custom advisors, which need it, are not offered "
                "either: write a Tuner (and an Assessor that stops trials) and name them under tuner "
                "and assessor.",
                name=name,
            )
        if name.startswith("nni."):
            raise ImportError(
                f"{name} is not offered: {_OFFERED}. For the rest of NNI (architecture search, compression, its own "
                "algorithms), run the script outside Proctor with NNI's own package.",
                name=name,
            )


if not any(isinstance(finder, type) and finder.__name__ == "_RefusingFinder" for finder in sys.meta_path):
    sys.meta_path.append(_RefusingFinder)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    if name in _SUBMODULES:
        return import_module(f"nni.{name}")
    if name in _SEARCH_SPACE_CALLS:
        return _refuse_search_space_call(name)
    raise AttributeError(f"module 'nni' has no attribute {name!r}: {_OFFERED}")


def _refuse_search_space_call(name: str) -> object:
    def call(*arguments: object, **options: object) -> object:
        raise RuntimeError(
            f"nni.{name}(...) in code is not offered: write the search space into searchSpaceFile (or searchSpace) as "
            f'{{"key": {{"_type": "{name}", "_value": [...]}}}} and take the value from '
            'nni.get_next_parameter()["key"].'
        )

    call.__name__ = name
    return call
