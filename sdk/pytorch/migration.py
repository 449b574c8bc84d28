"""Checkpoints of older versions: recognised by their format number and brought to the present one, step by step.

The number changes only when the content's form does, so a checkpoint of a newer version with the same number is read,
and one with a higher number is refused with the reason.
"""

from collections.abc import Callable
from typing import Any

from proctor.sdk.pytorch.errors import UnreadableCheckpointError

FORMAT = 1
COMMAND = "python -m proctor.sdk.pytorch.migrate"

Content = dict[str, Any]
# What turns a content of format n into one of format n + 1, by n.
STEPS: "dict[int, Callable[[Content], Content]]" = {}
_PARTS = ("training_state", "model", "rng")


def upgrade(content: Content, name: str) -> Content:
    """Return the content of a checkpoint in the present format; the argument is left as it is.

    :param name: the checkpoint, for the errors.
    :raises UnreadableCheckpointError: it is of a newer format, of another trainer, or incomplete.
    """
    number = content.get("format")
    if not isinstance(number, int):
        raise UnreadableCheckpointError(
            f"{name} was not written by this trainer (it has no format number). Checkpoints of Helios are continued "
            f"after `{COMMAND} SOURCE TARGET`."
        )
    if number > FORMAT:
        raise UnreadableCheckpointError(
            f"{name} was written by proctor {content.get('version', 'of an unknown version')} in format {number}; this "
            f"version reads up to format {FORMAT}. Upgrade proctor."
        )
    while number < FORMAT:
        if number not in STEPS:
            raise UnreadableCheckpointError(f"{name} has format {number}, which no version of proctor has written.")
        content = {**STEPS[number](content), "format": number + 1}
        number += 1
    if missing := [part for part in _PARTS if part not in content]:
        raise UnreadableCheckpointError(f"{name} is incomplete: it has no {', '.join(missing)}.")
    return content
