"""`nni.dump`, `nni.load` and `nni.trace`: JSON and nothing but JSON.

NNI's versions also pickle and unpickle Python objects. Reading such a document would run whatever its author put there,
so it is refused.
"""

import json
import re
from typing import Any, TextIO

from proctor.sdk.errors import UnsafeDocumentError, notice_once

_COMMENT_LINE = re.compile(r"^\s*(#|//).*$", re.MULTILINE)


def dump(
    obj: Any,
    fp: "TextIO | None" = None,
    *,
    use_trace: bool = True,
    pickle_size_limit: int = 4096,
    allow_nan: bool = True,
    **options: Any,
) -> str:
    """Return `obj` as JSON and write it to `fp` if given; `options` go to `json.dumps`.

    :raises TypeError: JSON cannot hold the object (NNI would have pickled it).
    """
    text = json.dumps(obj, default=_to_plain, allow_nan=allow_nan, **options)
    if fp is not None:
        fp.write(text)
    return text


def load(
    string: "str | None" = None,
    *,
    fp: "TextIO | None" = None,
    preserve_order: bool = False,
    ignore_comments: bool = True,
    **options: Any,
) -> Any:
    """Read JSON from a text or a file; lines that begin with `#` or `//` are comments.

    :raises UnsafeDocumentError: the document holds pickled or named Python objects.
    :raises ValueError: it is not JSON, or neither or both of `string` and `fp` are given.
    """
    if (string is None) == (fp is None):
        raise ValueError("nni.load takes either a text or fp=FILE")
    text = string if string is not None else fp.read() if fp is not None else ""
    try:
        return json.loads(text, object_hook=_refuse_objects, **options)
    except json.JSONDecodeError:
        if not ignore_comments:
            raise
        return json.loads(_COMMENT_LINE.sub("", text), object_hook=_refuse_objects, **options)


def trace(cls_or_func: Any = None, *, kw_only: bool = True, inheritable: bool = False) -> Any:
    """Return the class or function unchanged; NNI would have recorded its arguments."""
    notice_once("trace", "nni.trace changes nothing here: arguments are not recorded and nni.dump writes JSON only")
    return (lambda decorated: decorated) if cls_or_func is None else cls_or_func


def _to_plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"nni.dump writes JSON only and cannot hold {type(value).__module__}.{type(value).__qualname__}; NNI would "
        "have pickled it. Convert it to numbers, texts, lists and dictionaries first."
    )


def _refuse_objects(found: "dict[str, Any]") -> "dict[str, Any]":
    for key in found:
        if key.startswith("__") and key.endswith("__"):
            raise UnsafeDocumentError(
                f"nni.load reads JSON only; this document holds a Python object (key {key!r}), and rebuilding it "
                "could run code. Read it with NNI's own package if you trust its author."
            )
    return found
