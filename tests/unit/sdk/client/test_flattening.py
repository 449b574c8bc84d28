"""Parameters are changed by the names under which tables show them."""

from typing import Any

import pytest

from proctor.sdk.client.flattening import change_flat, flatten

NESTED = {"lr": 0.1, "model": {"_name": "mlp", "lr": 0.5, "head": {"_name": "wide", "units": 64}}, "a.b": {"c": 1}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lr": 0.2}, {"lr": 0.2}),
        ({"model.lr": 0.25}, {"model.lr": 0.25}),
        ({"model.head.units": 32, "a.b.c": 2}, {"model.head.units": 32, "a.b.c": 2}),
        ({"model": "mlp"}, {}),
        ({"model.head": "wide", "model.head.units": 8}, {"model.head.units": 8}),
    ],
)
def test_each_value_is_changed_under_its_name_in_tables(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    before = flatten(NESTED)
    assert flatten(change_flat(NESTED, changes)) == before | expected
    assert flatten(NESTED) == before, "the original stays"


def test_another_branch_has_what_is_given_with_it_and_nothing_of_the_one_before() -> None:
    changed = change_flat(NESTED, {"model.kernel": 3, "model": "cnn", "model.depth": 2})
    assert changed["model"] == {"_name": "cnn", "kernel": 3, "depth": 2}


def test_a_whole_value_may_be_given() -> None:
    assert change_flat(NESTED, {"model": {"_name": "cnn"}})["model"] == {"_name": "cnn"}


@pytest.mark.parametrize("name", ["momentum", "model.units", "model.head.lr", "lr.x", "a", "model."])
def test_a_name_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        change_flat(NESTED, {name: 1})
