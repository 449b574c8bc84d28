"""What the SDK has to tell the person at the trial's standard error: once each, and never at the price of the trial."""

import sys

_given: "set[str]" = set()


def notice_once(topic: str, text: str) -> None:
    """Print `proctor: <text>` to standard error unless this topic has been spoken of in this process."""
    if topic in _given:
        return
    _given.add(topic)
    try:
        sys.stderr.write(f"proctor: {text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # no standard error, or a closed one
        pass
