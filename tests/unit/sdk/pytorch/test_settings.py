"""Options that contradict each other or are out of range are refused before anything happens."""

import inspect
import pydoc
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import pytest
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import ConfigurationError, Trainer, TrainerError, TrainerOptions, TrainUnit, plain
from proctor.sdk.pytorch import config as trainer_config
from proctor.sdk.pytorch.config import Settings, make_settings


@pytest.mark.parametrize("value", ["epoch", "iteration", TrainUnit.EPOCH, TrainUnit.ITERATION])
def test_T1_a_unit_is_the_enum_or_its_name(value: Any) -> None:
    assert Trainer("run", train_unit=value).settings.train_unit == TrainUnit(value)


@pytest.mark.parametrize("value", ["epochs", "EPOCH", 1, None])
def test_T1_any_other_unit_is_an_error_that_names_those_there_are(value: Any) -> None:
    with pytest.raises(ValueError, match="'epoch' or 'iteration'"):
        Trainer("run", train_unit=value)


@pytest.mark.parametrize("value", [1.5, -1, 10.0, float("-inf"), float("nan")])
def test_T2_a_number_of_steps_that_is_no_count_is_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match="total_steps"):
        Trainer("run", total_steps=value)


def test_T2_an_endless_run_needs_a_rule_that_stops_it() -> None:
    class Plain(RecordingModel):
        """Has no rule of its own."""

    Plain.should_training_stop = RecordingModel.__mro__[1].should_training_stop  # type: ignore[method-assign]
    model = Plain()
    with pytest.raises(ConfigurationError, match="nothing would stop the run"):
        Trainer("run", total_steps=float("inf"), use_cpu=True).fit(model, RangeData())
    assert model.batches == []


def test_T2_nothing_to_do_is_refused_when_training_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        Trainer("run", use_cpu=True).fit(RecordingModel(), RangeData())


@pytest.mark.parametrize("name", ["valid_frequency", "print_frequency", "chkpt_frequency", "early_stop_cycles"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_T8_a_frequency_is_none_or_at_least_one(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Trainer("run", **{"valid_frequency": 1, name: value})  # type: ignore[arg-type]


def test_T8_none_is_never(tmp_path: Path) -> None:
    model = RecordingModel()
    trainer = Trainer("run", total_steps=2, chkpt_root=tmp_path, use_cpu=True)
    trainer.fit(model, RangeData(2))
    assert model.logged == []
    assert "valid_step" not in model.hooks
    assert model.hooks.count("checkpoint") == 1  # the one of the end


def test_C1_saving_without_a_folder_is_refused_before_training_starts() -> None:
    model = RecordingModel()
    with pytest.raises(ConfigurationError, match="chkpt_root"):
        Trainer("run", total_steps=1, chkpt_frequency=1, use_cpu=True).fit(model, RangeData())
    assert model.batches == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"enable_cudnn_benchmark": True, "enable_deterministic": True}, "enable_deterministic forbids"),
        ({"use_cpu": True, "gpus": [0]}, r"gpus=\[0\] contradict"),
        ({"early_stop_cycles": 1}, "valid_frequency is None"),
        ({"keep_best": 1}, "best_metric"),
        ({"best_mode": "highest"}, "'max' or 'min'"),
        ({"enable_file_logging": True}, "log_path"),
        ({"enable_tensorboard": True}, "run_path"),
        ({"accumulation_steps": 0}, "accumulation_steps"),
        ({"epochs": 3}, "no option epochs;"),
        ({"max_epochs": 3}, r"no option max_epochs \(here total_steps\); its options are "),
    ],
)
def test_what_contradicts_itself_is_refused(options: "dict[str, Any]", told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Trainer("run", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("keep_best", -1, "an integer of at least 0"),
        ("keep_best", 1.5, "an integer of at least 0"),
        ("keep_last", 0, "an integer of at least 1 or None"),
        ("total_steps", True, "an integer that is not negative, or float('inf')"),
        ("total_steps", "10", "an integer that is not negative, or float('inf')"),
        ("total_steps", None, "an integer that is not negative, or float('inf')"),
        ("random_seed", 1.7, "an integer from 0 to"),
        ("random_seed", -1, "an integer from 0 to"),
        ("random_seed", 2**64, "an integer from 0 to"),
        ("random_seed", "x", "an integer from 0 to"),
        ("random_seed", True, "an integer from 0 to"),
        ("background_writes", "no", "True or False"),
        ("use_cpu", 1, "True or False"),
        ("strict_resume", None, "True or False"),
        ("gpus", 0, "a list of the ids of GPUs"),
        ("gpus", "01", "a list of the ids of GPUs"),
        ("gpus", ["0"], "a list of the ids of GPUs"),
        ("train_exceptions", ValueError, "a list or tuple of exception types"),
        ("train_exceptions", None, "a list or tuple of exception types"),
        ("test_exceptions", [ValueError("x")], "a list or tuple of exception types"),
        ("group_timeout_seconds", "9", "a number of seconds above 0, or None"),
        ("group_timeout_seconds", 0, "a number of seconds above 0, or None"),
        ("group_timeout_seconds", float("nan"), "a number of seconds above 0, or None"),
        ("chkpt_root", 5, "the path of a folder"),
        ("log_path", b"logs", "the path of a folder"),
        ("backend", 1, "a text or None"),
        ("best_metric", ["accuracy"], "a text or None"),
        ("best_mode", ["max"], "'max' or 'min'"),
        ("processes", 2.0, "an integer of at least 1"),
    ],
)
def test_what_is_out_of_its_range_is_named_with_what_was_expected_and_found(
    name: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        Trainer("run", **{name: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{name} must be {expected}")
    assert str(error.value).endswith(f"; found {value!r}.")


def test_every_option_has_a_rule() -> None:
    for option in fields(Settings)[1:]:
        kind = getattr(option.type, "__name__", option.type)
        assert option.name in trainer_config._BY_NAME or kind in trainer_config._BY_TYPE


OPEN_RUN = ("run_name", "make_parts", "dataset", "params")


@pytest.mark.parametrize(
    ("function", "own", "decided"),
    [(Trainer, ("run_name",), ()), (plain.open_run, OPEN_RUN, tuple(plain._DECIDED_BY_THE_LOOP))],
)
def test_the_signature_shows_every_option_with_its_default(
    function: Any, own: "tuple[str, ...]", decided: "tuple[str, ...]"
) -> None:
    shown = dict(inspect.signature(function).parameters)
    assert tuple(shown)[: len(own)] == own
    options = {name: parameter for name, parameter in shown.items() if name not in own}
    assert list(options) == [option.name for option in fields(Settings)[1:] if option.name not in decided]
    assert set(options) | set(decided) == set(TrainerOptions.__annotations__)
    assert {parameter.kind for parameter in options.values()} == {inspect.Parameter.KEYWORD_ONLY}
    given = {name: parameter.default for name, parameter in options.items()}
    assert make_settings("run", given) == make_settings("run", {})
    assert options["chkpt_root"].annotation == "str | os.PathLike[str] | None"
    assert "accumulation_steps: int = 1" in pydoc.render_doc(function, renderer=pydoc.plaintext).replace("'", "") or (
        "accumulation_steps" in decided
    )


def test_every_option_is_described() -> None:
    assert re.findall(r":param (\w+):", TrainerOptions.__doc__ or "") == list(TrainerOptions.__annotations__)
    assert list(TrainerOptions.__annotations__) == [option.name for option in fields(Settings)[1:]]


def test_integers_of_numpy_are_plain_ones_and_rows_may_be_lists(tmp_path: Path) -> None:
    settings = make_settings(
        "run",
        {
            "total_steps": numpy.int64(3),
            "random_seed": numpy.uint32(7),
            "gpus": [1, 0],
            "train_exceptions": [ValueError],
            "chkpt_root": str(tmp_path),
        },
    )
    assert (settings.total_steps, settings.random_seed, settings.gpus) == (3, 7, (1, 0))
    assert type(settings.total_steps) is type(settings.random_seed) is int
    assert (settings.train_exceptions, settings.chkpt_root) == ((ValueError,), tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a b", 5, None])
def test_a_run_is_called_what_a_file_can_be_called(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="run_name"):
        Trainer(name)


@pytest.mark.slow
def test_validations_need_data() -> None:
    class NoValidation(RangeData):
        def setup(self) -> None:
            self.add_train_phase(range(3))

    with pytest.raises(TrainerError, match="set_validation in NoValidation"):
        Trainer("run", total_steps=1, valid_frequency=1, use_cpu=True).fit(RecordingModel(), NoValidation())
