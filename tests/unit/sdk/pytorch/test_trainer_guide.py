"""docs/trainer.md says what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from proctor.sdk.pytorch import DataLoaderParams, TrainUnit
from proctor.sdk.pytorch.settings import Settings

GUIDE = (Path(__file__).parents[4] / "docs" / "trainer.md").read_text()


def documented_defaults() -> "dict[str, str]":
    table = GUIDE.partition("## Settings")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in table.splitlines()[3:]:
        names, defaults = (re.findall(r"`([^`]*)`", cell) for cell in line.split("|")[1:3])
        found.update(zip(names, defaults, strict=True))
    return found


def test_every_setting_is_in_the_table_with_its_default() -> None:
    expected = {field.name: repr(field.default) for field in fields(Settings) if field.name != "run_name"}
    expected |= {"train_unit": repr(TrainUnit.EPOCH.value), "random_seed": "None"}
    assert documented_defaults() == {name: value.replace("'", '"') for name, value in expected.items()}


def test_every_parameter_of_a_loader_is_named() -> None:
    assert [field.name for field in fields(DataLoaderParams) if f"`{field.name}`" not in GUIDE] == []
