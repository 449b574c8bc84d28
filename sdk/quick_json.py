"""Reading JSON and quoting text without importing `json`.

`import json` compiles regular expressions and costs as much as most of an interpreter's start (about 7 of 10 ms), which
every trial would pay. CPython's accelerator module does the same work without them; where it is missing or refuses,
the public module takes over, so nothing depends on it but the time.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

try:
    from _json import encode_basestring_ascii, make_scanner
except ImportError:  # another Python implementation
    from json import JSONDecoder
    from json.encoder import encode_basestring_ascii

    _scan: "Callable[[str, int], tuple[Any, int]]" = JSONDecoder().scan_once  # type: ignore[attr-defined]
else:

    class _Context:
        """What the scanner asks of a decoder."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        array_hook = None
        parse_float = float
        parse_int = int
        parse_constant = float
        memo: "dict[str, str]" = {}  # noqa: RUF012 - read by older scanners only

    _scan = make_scanner(_Context())  # type: ignore[arg-type]


def quote(text: str) -> str:
    """Return `text` as a JSON string of ASCII characters."""
    return encode_basestring_ascii(text)


def loads(text: str) -> "Any":
    """Read one JSON document.

    :raises ValueError: the text is not JSON.
    """
    stripped = text.strip(" \t\r\n")
    try:
        value, end = _scan(stripped, 0)
    except Exception:  # it cannot say what is wrong: its own error class lives in the module we do not import
        end = -1
    if end == len(stripped):
        return value
    import json

    return json.loads(text)
