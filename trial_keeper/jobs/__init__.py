"""The trial jobs of this node: each is launched, watched, stopped and ended here, and what it has to report is kept.

Entry: `table.JobTable` (all jobs of a keeper). Reading order: job, records (what is on disk about a job), launching,
table, outbox (what the manager has not confirmed), journal_watch, cleanup, lost_reports, disk_space.
"""
