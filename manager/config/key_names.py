"""How keys are compared: NNI ignores case and underscores, and so does this project."""

import difflib
import re
from collections.abc import Iterable

_HUMP = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def folded(key: str) -> str:
    """The form in which two spellings of one key are equal: `trial_command` and `TrialCommand` alike."""
    return key.replace("_", "").lower()


def camel_case(name: str) -> str:
    """The YAML spelling of a Python field name: `trial_code_directory` is `trialCodeDirectory`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def snake_case(key: str) -> str:
    """The Python spelling of a YAML key: `maxNodes` is `max_nodes`."""
    return _HUMP.sub("_", key).lower()


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that looks most like `key`, or None when none does."""
    by_folded = {folded(name): name for name in known}
    close = difflib.get_close_matches(folded(key), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None
