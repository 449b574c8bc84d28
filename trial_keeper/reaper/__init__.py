"""The processes between the keeper and a trial, and what they leave on disk: they outlive the keeper.

Entry: `spawner.main`, the process that forks one reaper for each job. Reading order: spawner, reaper, exits (wait
status to end reason), leases (GPU shares as lock files). Import-minimal: the start of every trial waits for these
imports.
"""
