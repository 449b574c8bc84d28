"""Checkpoints on disk: written whole, found again, pruned.

Entry: `folder.CheckpointFolder`. Reading order: folder, pointer (the `latest` pointer and retention), serialization,
filesystem, history, attributes (what is saved besides parts), walk (where it is found), values (in which form).
"""
