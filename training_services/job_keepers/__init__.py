"""The parts of `JobKeeperService`.

Entry: `lifecycle.JobKeeperLifecycle`, the base class of that service. Reading order: platform (the methods of a
platform, and how it describes a job), lifecycle (starting, stopping and removing keepers), files (sending, reading,
copying and deleting files of jobs), staging (preparing a job before its launch), departures (collecting files after a
job has ended).
"""
