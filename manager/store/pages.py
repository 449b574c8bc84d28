"""Pages of long lists. A cursor says after which row the next page begins, so rows that come and go shift nothing."""

import base64
import json
from dataclasses import dataclass
from typing import Generic, TypeVar

from proctor.manager.store.errors import BadCursor

T = TypeVar("T")

Key = tuple[str | int | float | None, ...]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list in its order; `next_cursor` None: these were the last."""

    items: list[T]
    next_cursor: str | None = None


def encode_cursor(order: str, key: Key) -> str:
    """An opaque, URL-safe text for the sort key of a page's last row in the named order."""
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, order: str, length: int) -> Key:
    """The sort key in a cursor. Raises BadCursor when it is not one of this order."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        found, *key = parts
    except (ValueError, TypeError) as error:
        raise BadCursor(f"The cursor {cursor[:80]!r} was not made here. Start again without a cursor.") from error
    if found != order or len(key) != length or not all(isinstance(part, str | int | float | None) for part in key):
        raise BadCursor(f"The cursor {cursor[:80]!r} belongs to another list or order than {order!r}. Start again.")
    return tuple(key)
