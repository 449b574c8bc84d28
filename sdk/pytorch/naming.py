"""What a checkpoint's file is called; people read these names, the trainer never does."""

import re

from proctor.sdk.pytorch.errors import ConfigurationError

SUFFIX = ".pth"
_METADATA = re.compile(r"[A-Za-z0-9._+=-]*")


def name_checkpoint(run_name: str, *, epoch: int, iteration: int, metadata: "str | None" = None) -> str:
    """Return `<run>_epoch_<e>_iter_<i>[_<metadata>].pth`.

    :param metadata: what the model adds to the name, never the whole name; nothing or None for no more than that.
    :raises ConfigurationError: the metadata cannot be part of a file's name.
    """
    beginning = f"{run_name}_epoch_{epoch}_iter_{iteration}"
    if metadata is None:
        metadata = ""
    if not isinstance(metadata, str) or metadata.startswith(beginning) or not _METADATA.fullmatch(metadata):
        raise ConfigurationError(
            "append_metadata_to_chkpt_name must return only what is added behind the name (letters, digits and ._+=-, "
            f"such as 'acc=0.93'); found {metadata!r} for {beginning}."
        )
    return f"{beginning}_{metadata}{SUFFIX}" if metadata else f"{beginning}{SUFFIX}"
