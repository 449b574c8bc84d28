"""The trial keeper: the daemon beside the trials on one node.

Entry: `daemon`. Reading order: protocol, daemon, jobs, reaper, uplink; then journal_tail (reading reports by offset),
gpus, files, commands, relay, linux.
"""
