"""A trial's checkpoints: folders that appear whole or not at all, and can be verified later.

Entry: `saving` (`save_checkpoint`, `fetch_checkpoint`). Reading order: `saving`; `manifest` (what a checkpoint consists
of, and verifying it); `storage` (checkpoints under a URL); `ownership` (what of a storage is one experiment's).
"""
