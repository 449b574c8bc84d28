"""Trials on this machine, and experiments in memory.

Entry: each module measures one thing and has its name. `slow_fsync.c` makes the disk of `slow_disk` slow.
"""
