"""The manager's end of the keeper protocol, without a web framework.

Entry: `hub.KeeperHub`. Reading order: hub, sessions (which keeper may speak), presence (where it is kept how keepers
are), launches (what a keeper is ordered to do with a job), reports (what a report concerns and what is acknowledged),
<<<<<<< HEAD
jobs (which jobs are expected where), heartbeats (silent keepers, lost nodes), archive (the keeper as one file).
=======
jobs (which jobs are expected where), file_requests (files where jobs run), heartbeats (silent keepers, lost nodes).
>>>>>>> f31dca19 (Let keepers fetch archives from the manager by their hash, over the link they have)
"""
