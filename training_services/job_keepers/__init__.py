"""What `JobKeeperService` consists of, beside the service itself.

Entry: `lifecycle.JobKeeperLifecycle`, the lower half of that service. Reading order: platform (what a platform is
asked, and what it says of a job), lifecycle (starting, stopping and removing keepers), files (all that is done with the
files of the jobs), staging (what a job needs before its launch), departures (the files of jobs that are over, and the
keepers that still have them).
"""
