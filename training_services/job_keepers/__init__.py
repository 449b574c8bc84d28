"""What `JobKeeperService` consists of, beside the service itself.

Entry: `files.JobKeeperFiles`, all that is done with the files of its jobs. Reading order: platform (what a platform is
asked, and what it says of a job), files, staging (what a job needs before its launch), departures (the files of jobs
that are over, and the keepers that still have them).
"""
