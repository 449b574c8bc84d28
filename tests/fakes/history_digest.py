"""The digest of a history, computed anew from its rows."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


def digest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """A chain of SHA-256 over the rows without their times."""
    digest = hashlib.sha256(b"proctor history").hexdigest()
    for row in rows:
        stable = {key: value for key, value in row.items() if key != "time_ms"}
        text = json.dumps(stable, separators=(",", ":"), sort_keys=True)
        digest = hashlib.sha256((digest + text).encode("ascii")).hexdigest()
    return digest
