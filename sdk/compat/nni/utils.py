"""What trials and custom tuners take from `nni.utils`."""

from enum import Enum
from typing import Any

__all__ = [
    "ClassArgsValidator",
    "MetricType",
    "OptimizeMode",
    "extract_scalar_history",
    "extract_scalar_reward",
    "merge_parameter",
]


class OptimizeMode(Enum):
    """Whether a tuner looks for small or large metrics."""

    Minimize = "minimize"
    Maximize = "maximize"


class MetricType:
    """The kinds of metric an advisor receives."""

    FINAL = "FINAL"
    PERIODICAL = "PERIODICAL"
    REQUEST_PARAMETER = "REQUEST_PARAMETER"


class ClassArgsValidator:
    """Subclass it and raise from `validate_class_args` when the arguments are wrong."""

    def validate_class_args(self, **kwargs: Any) -> None:
        """Check the arguments of the algorithm's constructor; the base class accepts all."""

    def choices(self, key: str, *args: Any) -> Any:
        """Return a rule for the third-party `schema` package: the value of `key` is one of `args`."""
        return _rule(lambda value: value in args, f"{key} must be one of {args}")

    def range(self, key: str, keyType: type, start: Any, end: Any) -> Any:
        """Return a rule for the third-party `schema` package: `key` is a `keyType` from `start` to `end`."""
        return _rule(
            lambda value: isinstance(value, keyType) and start <= value <= end,
            f"{key} must be of type {keyType.__name__}, from {start} to {end}",
        )


def merge_parameter(base_params: Any, override_params: "dict[str, Any] | None") -> Any:
    """Overwrite the defaults of a trial with the tuner's values, in place, and return them.

    :param base_params: an argparse namespace (or any object with attributes), or a dictionary.
    :param override_params: what `get_next_parameter` returned; None changes nothing.
    :raises ValueError: a parameter has no default of its name, or is not of its default's type. As in NNI, an integer
        is accepted where a float is expected, and anything where the default is None.
    """
    is_dictionary = isinstance(base_params, dict)
    for name, value in (override_params or {}).items():
        if not (name in base_params if is_dictionary else hasattr(base_params, name)):
            known = ", ".join(sorted(base_params if is_dictionary else getattr(base_params, "__dict__", ())))
            raise ValueError(
                f"the tuner proposes {name!r}, not one of the trial's parameters ({known}); make the search space and "
                "the trial agree"
            )
        if is_dictionary:
            base_params[name] = _fit(name, value, base_params[name])
        else:
            setattr(base_params, name, _fit(name, value, getattr(base_params, name)))
    return base_params


def extract_scalar_reward(value: Any, scalar_key: str = "default") -> Any:
    """Return the number in a metric.

    :raises RuntimeError: it is neither a number nor a dictionary that holds one under the key.
    """
    found = value.get(scalar_key) if isinstance(value, dict) else value
    if isinstance(found, (int, float)):
        return found
    raise RuntimeError(f"a metric must be a number or a dictionary with a number under {scalar_key!r}; found {value!r}")


def extract_scalar_history(trial_history: "list[Any]", scalar_key: str = "default") -> "list[Any]":
    """Return the numbers in a list of metrics."""
    return [extract_scalar_reward(value, scalar_key) for value in trial_history]


def _fit(name: str, value: Any, default: Any) -> Any:
    if default is None or isinstance(value, type(default)):
        return value
    if isinstance(default, float) and isinstance(value, int):
        return float(value)
    raise ValueError(
        f"the parameter {name!r} is of type {type(default).__name__} by default ({default!r}); the tuner proposes "
        f"{value!r}, of type {type(value).__name__}. Change the default or the search space."
    )


def _rule(test: Any, error: str) -> Any:
    try:
        from schema import Schema  # type: ignore[import-not-found]
    except ImportError as missing:
        raise ImportError(
            "ClassArgsValidator.choices and .range make rules for the package 'schema', which is not installed; "
            "install it, or check the values in validate_class_args"
        ) from missing
    return Schema(test, error=error)
