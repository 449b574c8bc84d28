"""What is sent as a resource can be encoded, whatever a trial or a machine has named itself."""

import json
from typing import Any

import pytest

from proctor.manager.api.models import Page


@pytest.mark.parametrize("items", [["\udce9"], ["a", "\udce9"], [None, "\udce9"], [1, "\udce9"]])
def test_every_text_of_a_list_is_cleaned(items: list[Any]) -> None:
    page = Page[str | int | None](items=items)
    assert page.items == [*items[:-1], "\\udce9"]
    assert json.loads(page.model_dump_json().encode())["items"] == page.items


def test_a_list_without_such_text_is_left_as_it_is() -> None:
    items = ["a", "é", None, 1]
    assert Page[str | int | None](items=items).items == items
