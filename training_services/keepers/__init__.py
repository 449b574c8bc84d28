"""The manager's end of the keeper protocol, without a web framework.

Entry: `hub.KeeperHub`. Reading order: hub, sessions (which keeper may speak), presence (where it is kept how keepers
are), launches (what a keeper is ordered to do with a job), reports (what a report concerns and what is acknowledged),
jobs (which jobs are expected where), file_requests (files where jobs run), heartbeats (silent keepers, lost nodes),
archive (the keeper as one file).
"""
