"""How keys are compared: NNI ignores case and underscores, and so does this project."""

import difflib
from collections.abc import Iterable


def folded(key: str) -> str:
    """The form in which two spellings of one key are equal: `trial_command` and `TrialCommand` alike."""
    return key.replace("_", "").lower()


def camel_case(name: str) -> str:
    """The YAML spelling of a Python field name: `trial_code_directory` is `trialCodeDirectory`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that looks most like `key`, or None when none does."""
    by_folded = {folded(name): name for name in known}
    close = difflib.get_close_matches(folded(key), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None
