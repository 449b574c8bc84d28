"""What the trainer calls on a model, a data module and a plug-in: checked before it calls any of it.

A hook that cannot take what it is called with would fail hours later, at the first validation or the first checkpoint;
one of another trainer's name would never be called, and what it was to save would be in no checkpoint.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.plugins import Plugin

# What a model's or a plug-in's own code calls, or the trainer only as it is here.
_NO_HOOKS = {
    "log",
    "average",
    "read_averages",
    "create_scaler",
    "autocast",
    "clip_gradients",
    "check_parts",
    "describe_precision",
}
_DATA_HOOKS = ("prepare_data", "setup", "teardown", "make_sampler")
_BY_THE_MODEL = "plug-ins have no such hook here; do it in the model's"
# Hooks of Helios that are not called here: by name, the hook to use, and what to do.
_HELIOS: "dict[type, dict[str, tuple[str, str]]]" = {
    Model: {
        "user_state_dict": ("state_dict", "call it state_dict"),
        "load_user_state_dict": ("load_state_dict", "call it load_state_dict(state)"),
        "append_to_banner": ("", "no banner is printed here; leave it out"),
    },
    Plugin: {
        "configure_trainer": ("", "give the options to Trainer"),
        "configure_model": ("", "do it in setup(model)"),
        **dict.fromkeys(
            ("on_validation_start", "on_validation_end", "on_testing_start", "on_testing_end"), ("", _BY_THE_MODEL)
        ),
    },
}


def check_hooks(model: Model, datamodule: DataModule, plugins: "Iterable[Plugin]") -> None:
    """Check all of a run.

    :raises ConfigurationError: a hook cannot be called, or never would be; the text names it.
    """
    _check(model, Model, names=_list_hooks(Model))
    _check(datamodule, DataModule, names=_DATA_HOOKS)
    for plugin in plugins:
        _check(plugin, Plugin, names=_list_hooks(Plugin))


def overrides(part: Any, method: "Callable[..., Any]") -> bool:
    """Whether a model, a data module or a plug-in has a method of its own in place of the base class's."""
    own = getattr(part, method.__name__)
    return getattr(own, "__func__", own) is not method


def _list_hooks(base: type) -> "list[str]":
    return [
        name
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_") and name not in _NO_HOOKS
    ]


def _check(part: Any, base: type, *, names: "Iterable[str]") -> None:
    for name in names:
        expected = vars(base)[name]
        if overrides(part, expected):
            _check_hook(f"{type(part).__name__}.{name}", getattr(part, name), expected)
    for name, (own_name, advice) in _HELIOS.get(base, {}).items():
        uses_own = bool(own_name) and overrides(part, vars(base)[own_name])  # which may well call the other
        if callable(getattr(part, name, None)) and not uses_own:
            raise ConfigurationError(
                f"{type(part).__name__}.{name} is a hook of Helios, which this trainer does not call: {advice}."
            )


def _check_hook(place: str, own: Any, expected: "Callable[..., Any]") -> None:
    """:raises ConfigurationError: it is none that can be called as the base class's is."""
    given = list(inspect.signature(expected).parameters.values())[1:]
    called = _describe(given)
    if not callable(own):
        raise ConfigurationError(
            f"{place} hides the hook {place.rpartition('.')[2]}{called}; found {own!r}. Rename it."
        )
    if inspect.iscoroutinefunction(own) or inspect.isgeneratorfunction(own):
        raise ConfigurationError(
            f"{place} would never run: it is a coroutine or has a yield. Make it a plain function."
        )
    try:
        found = inspect.signature(own, follow_wrapped=False)  # a decorator may add what the function itself takes
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        found.bind(
            *(parameter.name for parameter in given if parameter.kind is not parameter.KEYWORD_ONLY),
            **{parameter.name: None for parameter in given if parameter.kind is parameter.KEYWORD_ONLY},
        )
    except TypeError as problem:
        raise ConfigurationError(
            f"{place} must take what the trainer calls it with, {called}; found "
            f"{_describe(found.parameters.values())}. Give it these parameters."
        ) from problem


def _describe(parameters: "Iterable[inspect.Parameter]") -> str:
    return str(inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters]))
