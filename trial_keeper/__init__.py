"""The trial keeper: the daemon beside the trials on one node.

Entry: `daemon`; `__main__` runs it and the commands. Reading order: protocol, settings, daemon, jobs, reaper, uplink;
then pod (the keeper of one job) and pod_output (what it leaves behind), journal_tail (reading reports by offset),
gpus, files, probe (the first contact, before anything of ours is there), commands, start (of the keeper, by another
process), relay, errors, linux.
"""
