"""Twelve shapes of learning curves, and where their weighted agreement says a curve will end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

Array = Any
"""A NumPy array of floats; NumPy is not known to the type checker here."""

_MAX_EVALUATIONS = 400
_FARTHEST = 10.0
"""A prediction this many spans of the history away from it is not believed."""


@dataclass(frozen=True)
class CurveFamily:
    """One shape: `function(x, *parameters)` for steps x = 1, 2, ..., and where its fit begins."""

    name: str
    function: Callable[..., Array]
    start: tuple[float, ...]


FAMILIES = (
    CurveFamily("vapor pressure", lambda x, a, b, c: np.exp(a + b / x + c * np.log(x)), (-1.0, -1.0, 0.1)),
    CurveFamily("pow3", lambda x, c, a, alpha: c - a * x**-alpha, (0.8, 0.5, 0.5)),
    CurveFamily("log-log linear", lambda x, a, b: np.log(a * np.log(x) + b), (1.0, 1.5)),
    CurveFamily("hill3", lambda x, top, eta, kappa: top * x**eta / (kappa**eta + x**eta), (0.8, 1.0, 1.0)),
    CurveFamily("log power", lambda x, a, b, c: a / (1.0 + (x / np.exp(b)) ** c), (0.8, 0.0, -0.5)),
    CurveFamily("pow4", lambda x, c, a, b, alpha: c - (a * x + b) ** -alpha, (1.0, 1.0, 1.0, 0.5)),
    CurveFamily("MMF", lambda x, a, b, kappa, d: a - (a - b) / (1.0 + (kappa * x) ** d), (0.8, 0.1, 0.5, 1.0)),
    CurveFamily("exp4", lambda x, c, a, b, alpha: c - np.exp(-a * x**alpha + b), (0.8, 0.5, 0.0, 0.5)),
    CurveFamily("ilog2", lambda x, c, a: c - a / np.log(x + 1.0), (0.8, 0.4)),
    CurveFamily("weibull", lambda x, a, b, kappa, d: a - (a - b) * np.exp(-((kappa * x) ** d)), (0.8, 0.1, 0.3, 1.0)),
    CurveFamily("janoschek", lambda x, a, b, kappa, d: a - (a - b) * np.exp(-kappa * x**d), (0.8, 0.1, 0.3, 1.0)),
    CurveFamily("logx linear", lambda x, a, b: a * np.log(x) + b, (0.1, 0.3)),
)  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What one family expects."""

    family: str
    value: float
    error: float
    """Mean squared distance of the fit from the history, corrected for the number of its parameters."""


def fit(family: CurveFamily, history: Sequence[float], target: int) -> Prediction | None:
    """Fit one family to the history and read it at step `target`; None where it does not fit.

    Fits are made in a unit where the history spans 0.1 to 0.8, which is what the starting points are written for.
    """
    y = np.asarray(history, dtype=float)
    low, span = float(y.min()), float(y.max() - y.min()) or 1.0
    unit = 0.1 + 0.7 * (y - low) / span
    x = np.arange(1.0, len(y) + 1.0)
    with np.errstate(all="ignore"):
        parameters = _fitted(family, x, unit)
        if parameters is None:
            return None
        expected = float(family.function(np.float64(target), *parameters))
        squares = float(np.sum((family.function(x, *parameters) - unit) ** 2))
    freedom = max(len(y) - len(parameters), 1)
    if not (np.isfinite(expected) and np.isfinite(squares) and abs(expected) <= _FARTHEST):
        return None
    return Prediction(family.name, low + (expected - 0.1) / 0.7 * span, squares / freedom)


def predict(history: Sequence[float], target: int) -> float | None:
    """Return where the curve is expected at step `target`, or None if no family fits.

    Each family that fits weighs as much as its fit is close; those far from the median of all do not count.
    """
    found = [prediction for family in FAMILIES if (prediction := fit(family, history, target)) is not None]
    if not found:
        return None
    values = np.array([prediction.value for prediction in found])
    distance = np.abs(values - np.median(values))
    believed = distance <= 3.0 * max(float(np.median(distance)), 1e-12)
    weights = 1.0 / (np.array([prediction.error for prediction in found])[believed] + 1e-9)
    return float(np.sum(weights * values[believed]) / np.sum(weights))


def _fitted(family: CurveFamily, x: Array, y: Array) -> tuple[float, ...] | None:
    import warnings

    if len(x) < len(family.start):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            found, _ = curve_fit(family.function, x, y, p0=family.start, method="lm", maxfev=_MAX_EVALUATIONS)
        except (RuntimeError, ValueError, TypeError):
            return None
    return tuple(float(parameter) for parameter in found)
