"""Errors of what is tried again: whether they may pass by themselves, and how they and the next attempt are worded."""

import math

from proctor.manager.store.errors import DatabaseUnusable, ReadTimeout
from proctor.sdk.json_input import clean_text
from proctor.training_services.errors import ServiceUnavailable


def is_transient(error: BaseException) -> bool:
    """Whether an error is the machine's, so that it may pass by itself: a disk or a service that is not there now."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_transient(part) for part in error.exceptions)
    return isinstance(error, (DatabaseUnusable, ReadTimeout, ServiceUnavailable, OSError))


def error_clause(error: BaseException) -> str:
    """An error as part of a sentence, on one line."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return error_clause(error.exceptions[0])
    text = clean_text(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return text[0].lower() + text[1:] if text.startswith("The ") else text


def retry_clause(seconds: float) -> str:
    """When the next attempt is made, in so many seconds, as a clause."""
    return f"tried again in {math.ceil(seconds)} s" if seconds > 0 else "it is being tried again now"
