"""What Linux offers, with Proctor's rules: processes, identities, files, locks and notifications. Knows no job.

Entry: `processes`. Reading order: identity, processes, files, locks, inotify; tasks is a task group for Python 3.10,
backoff the pauses between attempts.
"""
