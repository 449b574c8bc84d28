"""The callbacks with the frameworks themselves, in processes that are killed."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.incarnations import Incarnations

MISSING = [name for name in ("lightning", "transformers", "accelerate") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} cannot be imported"),
]
RUNS = "fakes.framework_runs"
FRAMEWORKS = ("lightning", "transformers")
ON_THE_WAY = {"lightning": "trainer.pointer", "transformers": "trainer.mark"}  # what a save does last


class Framework:
    """One framework, trained with in incarnations."""

    def __init__(self, name: str, incarnations: Incarnations) -> None:
        self.name = name
        self._incarnations = incarnations

    def train(self, root: Path, function: str = "train", **how: Any) -> "dict[str, Any]":
        found: dict[str, Any] = self._incarnations.call(RUNS, function, framework=self.name, root=str(root), **how)
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[Incarnations]:
    """The processes that die, with the frameworks imported."""
    incarnations = Incarnations(RUNS)
    yield incarnations
    incarnations.close()


@pytest.fixture(params=FRAMEWORKS)
def framework(server: Incarnations, request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param, server)


@pytest.mark.thorough
def test_the_guides_table_has_hooks_of_the_framework(server: Incarnations) -> None:
    where: dict[str, Any] = {"library": "lightning.pytorch", "kind": "LightningModule", "column": 1}
    assert server.call("fakes.guide_samples", "find_unknown", **where) == []


@pytest.mark.parametrize(
    ("heading", "trainer", "expected"),
    [
        ("### Lightning", "lightning.pytorch.Trainer", {"ResumableLoader", "lightning.pytorch.Trainer", "trainer.fit"}),
        ("### transformers", "transformers.Trainer", {"transformers.TrainingArguments", "trainer.train"}),
    ],
    ids=FRAMEWORKS,
)
def test_the_guides_sample_makes_calls_that_the_framework_takes(
    server: Incarnations, heading: str, trainer: str, expected: "set[str]"
) -> None:
    methods = {"trainer": trainer, "callback": "ProctorCallback"}
    called = server.call("fakes.guide_samples", "check_sample", heading=heading, methods=methods)
    assert {*expected, "ProctorCallback", "callback.find_checkpoint"} <= set(called)


def check_rest(found: "dict[str, Any]", whole: "dict[str, Any]") -> None:
    """A run was continued, without a warning, and ended with the bits of one that was left alone."""
    assert found["warned"] == whole["warned"] == []
    assert (found["weights"], found["optimizer"]) == (whole["weights"], whole["optimizer"])
    assert 0 < len(found["samples"]) < len(whole["samples"])
    assert found["samples"] == whole["samples"][-len(found["samples"]) :]


@pytest.mark.parametrize(
    ("kills", "recipe"),
    [
        ([("batch", 4), ("{}.before", 2), ("{}.after", 1), ("batch", 4)], {}),
        pytest.param([("batch", 8)], {"workers": 2}, marks=pytest.mark.thorough),
        pytest.param([("batch", 11)], {"accumulate": 2}, marks=pytest.mark.thorough),
        pytest.param([("batch", 4)], {"validate_every": 2}, marks=pytest.mark.thorough),
    ],
    ids=["four times", "with workers", "inside an optimizer window", "validated in the middle of epochs"],
)
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    framework: Framework, tmp_path: Path, kills: "list[tuple[str, int]]", recipe: "dict[str, Any]"
) -> None:
    whole = framework.train(tmp_path / "whole", **recipe)
    for place, number in kills:
        kill = (place.format(ON_THE_WAY[framework.name]), number)
        assert framework.train(tmp_path / "cut", kill=kill, **recipe)["killed"]
    check_rest(framework.train(tmp_path / "cut", **recipe), whole)
    assert whole["called"] == []  # nothing over a network


@pytest.mark.thorough
def test_a_run_of_two_ranks_is_exact_and_tells_when_a_rank_s_device_is_another(
    framework: Framework, tmp_path: Path
) -> None:
    whole = framework.train(tmp_path / "whole", "train_on_two")
    assert framework.train(tmp_path / "cut", "train_on_two", kill=("batch of rank 1", 4))["killed"]
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    found = framework.train(tmp_path / "cut", "train_on_two")
    for here, there in zip(found["ranks"], whole["ranks"], strict=True):
        check_rest(here, there)
    other = framework.train(tmp_path / "other", "train_on_two", threads=(1, 3))
    assert other["ranks"][0]["warned"] == ["not exact: threads was '1 / 2', is '1 / 3'"]
