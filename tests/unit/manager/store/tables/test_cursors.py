"""Cursors come back as they were and are refused anywhere else."""

import pytest

from proctor.manager.store.errors import BadCursor
from proctor.manager.store.tables.trials import decode_cursor, encode_cursor


@pytest.mark.parametrize("key", [(0.25, 7), (None, 3), ("é", 1.5)])
def test_a_cursor_carries_its_key(key: tuple[object, ...]) -> None:
    assert decode_cursor(encode_cursor("value", key), "value", 2) == key  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "!!!!", "é", "bnVsbA", encode_cursor("-value", (1.0, 2)), encode_cursor("value", (1.0,)), "W10"],
)
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor, match="cursor"):
        decode_cursor(cursor, "value", 2)
