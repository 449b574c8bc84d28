"""`nni.ClassArgsValidator`: a custom algorithm's say about its `classArgs`."""

from typing import Any


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


def _rule(test: Any, error: str) -> Any:
    try:
        from schema import Schema  # type: ignore[import-not-found]
    except ImportError as missing:
        raise ImportError(
            "ClassArgsValidator.choices and .range make rules for the package 'schema', which is not installed; "
            "install it, or check the values in validate_class_args"
        ) from missing
    return Schema(test, error=error)
