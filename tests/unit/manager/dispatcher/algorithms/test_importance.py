"""How much each parameter matters, against Optuna's own result for the same trials."""

import math
import random
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from proctor.manager.dispatcher.algorithms.importance import LEAST_TRIALS, importances
from proctor.sdk.space import parse_search_space

SPACE: dict[str, Any] = {
    "lr": {"_type": "loguniform", "_value": [1e-5, 1.0]},
    "layers": {"_type": "randint", "_value": [1, 9]},
    "model": {
        "_type": "choice",
        "_value": [
            {"_name": "cnn", "width": {"_type": "uniform", "_value": [0, 1]}},
            {"_name": "mlp", "width": {"_type": "choice", "_value": [1, 2, 3]}},
            {"_name": "linear"},
        ],
    },
    "fixed": {"_type": "choice", "_value": ["only"]},
}
DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1.0, log=True),
    "layers": IntDistribution(1, 8),
    "model": CategoricalDistribution(["cnn", "mlp", "linear"]),
    "fixed": CategoricalDistribution(["only"]),
}
WIDTHS: dict[str, BaseDistribution] = {"cnn": FloatDistribution(0, 1), "mlp": CategoricalDistribution([1, 2, 3])}


def trials(number: int) -> list[list[Any]]:
    """Trials whose value is decided by `lr` and, of the kinds that have one, by the width."""
    draw, space = random.Random(7), parse_search_space(SPACE)
    made = [space.sample(draw) for _ in range(number)]
    return [[each, math.log10(each["lr"]) + 2 * each["model"].get("width", 0), None] for each in made]


def answer(found: list[list[Any]], **changes: Any) -> dict[str, Any]:
    question = {"search_space": SPACE, "key": None, "quantile": 0.1, "maximize": False, "trials": found}
    return importances({**question, **changes})


def shares(found: dict[str, Any]) -> dict[str, float]:
    return {each["name"]: each["importance"] for each in found["parameters"]}


def of_optuna(found: list[list[Any]], *, direction: str, quantile: float) -> dict[str, float]:
    """As someone would have it who had run the same search with Optuna."""
    study = optuna.create_study(direction=direction)
    for parameters, value, _ in found:
        flat = {**parameters, "model": parameters["model"]["_name"]}
        distributions = dict(DISTRIBUTIONS)
        if "width" in parameters["model"]:
            flat["model.width"] = parameters["model"]["width"]
            distributions["model.width"] = WIDTHS[flat["model"]]
        study.add_trial(create_trial(value=value, params=flat, distributions=distributions))
    # Here, because it imports scikit-learn, and every worker collects this module.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=quantile))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(("direction", "quantile"), [("minimize", 0.1), ("maximize", 0.25)])
def test_shares_are_those_of_optuna_with_nested_and_categorical_parameters(direction: str, quantile: float) -> None:
    found = trials(300)
    ours = answer(found, maximize=direction == "maximize", quantile=quantile)
    assert shares(ours) == pytest.approx(of_optuna(found, direction=direction, quantile=quantile))
    assert list(shares(ours))[-1] == "fixed"
    assert shares(ours)["fixed"] == 0
    assert math.fsum(shares(ours).values()) == pytest.approx(1)
    assert [each["importance"] for each in ours["parameters"]] == sorted(shares(ours).values(), reverse=True)
    assert (ours["trials"], ours["outside"], ours["top"], ours["reason"]) == (300, 0, 300 * quantile, None)


def test_the_value_is_the_number_or_a_key_of_the_metric() -> None:
    by_layers = [
        [parameters, value, {"default": value, "cost": {"gpu": parameters["layers"]}}]
        for parameters, value, _ in trials(200)
    ]
    assert next(iter(shares(answer(by_layers, key="cost.gpu")))) == "layers"
    assert next(iter(shares(answer(by_layers)))) != "layers"
    missing = answer(by_layers, key="loss")
    assert missing["parameters"] == []
    assert "0 trials that succeeded have a number named 'loss' in their final metric" in missing["reason"]


def test_trials_without_a_finite_value_and_outside_of_the_space_are_left_out() -> None:
    found = trials(60)
    plain = answer(found)
    others = [[{**found[0][0], "lr": 50.0}, 1.0, None], [found[0][0], None, None], [found[1][0], "NaN", None]]
    assert answer(found + others) == {**plain, "outside": 1}


def test_what_a_tuner_adds_to_the_parameters_is_no_axis() -> None:
    found = trials(40)
    budgeted = [[{**parameters, "TRIAL_BUDGET": 3}, value, metric] for parameters, value, metric in found]
    assert answer(budgeted) == answer(found)


def test_without_a_difference_there_is_a_reason_and_no_figure() -> None:
    found = trials(60)
    assert answer(found[: LEAST_TRIALS - 1])["reason"] == (
        "too few trials: 9 trials that succeeded have a final metric, and at least 10 are needed"
    )
    same = answer([[parameters, 0.5, None] for parameters, _, _ in found])
    assert (same["parameters"], same["reason"]) == ([], "all 60 trials have the same value")
    alike = answer(
        [[found[0][0], value, None] for _, value, _ in found], search_space={"x": "of a class of the user's"}
    )
    assert (alike["parameters"], alike["reason"]) == ([], "no parameter has more than one value in the trials")
    ties = [[parameters, 1.0 if number else 0.0, None] for number, (parameters, _, _) in enumerate(found)]
    assert "so many trials have the worst value" in answer(ties, quantile=0.5)["reason"]


def test_axes_come_from_the_values_where_the_space_is_not_one_of_ours() -> None:
    found = trials(300)
    for space in ({"lr": ["anything"]}, {"other": {"_type": "uniform", "_value": [0, 1]}}):
        ours = answer(found, search_space=space)
        assert shares(ours).keys() == {"lr", "layers", "model", "model.width", "fixed"}
        assert next(iter(shares(ours))) in ("lr", "model.width")
        assert ours["outside"] == 0
