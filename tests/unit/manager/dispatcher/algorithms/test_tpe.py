"""TPE's random start, which is drawn without Optuna, is that of Optuna to the last bit."""

import subprocess
import sys

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.registry import create_algorithm
from proctor.manager.dispatcher.algorithms.tuners.flat_space import FlatAxis
from proctor.manager.dispatcher.algorithms.tuners.optuna_study import OptunaStudy, distribution_of
from proctor.manager.dispatcher.algorithms.tuners.tpe import TpeTuner, random_draws
from proctor.sdk.space import parse_search_space

SPACE = {
    "x": {"_type": "uniform", "_value": [0, 1]},
    "lr": {"_type": "loguniform", "_value": [1e-5, 1]},
    "n": {"_type": "choice", "_value": [1, 2, 3]},
}
FIRST = (
    "{'x': 0.7014433627552488, 'lr': 0.0002468901114530713, 'n': 2}",
    "{'x': 0.8897458633585409, 'lr': 0.3096667361796886, 'n': 2}",
)
"""Its first suggestions with the seed 7, as the versions gave them that had Optuna choose them."""
SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.floats(-1e15, 1e15)
SIZES = st.floats(1e-300, 1e300)
WHOLES = st.integers(-(10**6), 10**6)


@st.composite
def axes(draw: st.DrawFn) -> FlatAxis:
    """An axis of any kind; the ends may be the same."""
    kind = draw(st.sampled_from(["choice", "whole", "log", "number"]))
    if kind == "choice":
        return FlatAxis("x", size=draw(st.integers(1, 20)))
    low, high = sorted(draw(st.tuples(*[{"whole": WHOLES, "log": SIZES, "number": NUMBERS}[kind]] * 2)))
    return FlatAxis("x", low=low, high=min(high, low + 99_999) if kind == "whole" else high, log=kind == "log",
                    whole=kind == "whole")  # fmt: skip


@given(st.lists(axes(), min_size=1, max_size=6), SEEDS)
def test_axes_are_drawn_as_optunas_random_sampler_draws_them(found: list[FlatAxis], seed: int) -> None:
    sampler, draw = optuna.samplers.RandomSampler(seed), random_draws(seed)
    for axis in found:
        distribution = distribution_of(axis)
        if distribution.single():
            expected = axis.low if axis.size == 0 else 0
        else:
            expected = sampler.sample_independent(None, None, axis.name, distribution)
        drawn = draw(axis)
        assert drawn == expected
        assert type(drawn) is (float if axis.size == 0 and not axis.whole else int)


@pytest.mark.filterwarnings("ignore:overflow encountered in subtract")
def test_a_range_that_no_number_holds_is_refused_as_by_optuna() -> None:
    axis = FlatAxis("x", low=-1e308, high=1e308)
    with pytest.raises(OverflowError) as by_optuna:
        optuna.samplers.RandomSampler(1).sample_independent(None, None, "x", distribution_of(axis))
    with pytest.raises(OverflowError) as found:
        random_draws(1)(axis)
    assert str(found.value) == str(by_optuna.value)


def test_a_failed_trial_is_no_result_and_a_pruned_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = OptunaStudy.ask
    monkeypatch.setattr(OptunaStudy, "ask", lambda *given: (asked.append(1), ask(*given))[1])
    tuner = create_algorithm("tuner", "TPE", {"tpe_args": {"n_startup_jobs": 3}}, 7)
    assert isinstance(tuner, TpeTuner)
    tuner.update_search_space(parse_search_space(SPACE))
    parameters = [tuner.suggest(number).parameters for number in range(4)]
    tuner.trial_end(0, False)
    tuner.receive_result(1, parameters[1], 0.5)
    tuner.receive_pruned(2, parameters[2], 0.5, 9)
    tuner.suggest(4)
    assert not asked
    tuner.import_data(parameters[3], 1.0)
    tuner.suggest(5)
    assert asked


def test_a_dispatcher_answers_before_it_imports_optuna() -> None:
    code = (
        "import socket, sys\nfrom proctor.manager.dispatcher import protocol\n"
        "from proctor.manager.dispatcher.host.session import HostSession\n"
        "session = HostSession(lambda message: print(getattr(message, 'parameters', '')))\n"
        f"tuner = protocol.AlgorithmSpec(name='TPE')\nspace = {SPACE!r}\n"
        "session.handle(protocol.Initialize('e', space, tuner, None, 7, '/nowhere', direction='minimize'))\n"
        "session.handle(protocol.RequestTrialJobs(1, [0, 1]))\n"
        "print([name for name in ('optuna', 'numpy', 'scipy', 'tqdm', 'asyncio', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n") == ["", *FIRST, "[]", ""], done.stderr
