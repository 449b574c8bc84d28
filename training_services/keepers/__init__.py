"""The manager's end of the keeper protocol, without a web framework.

Entry: `hub.KeeperHub`. Reading order: hub, sessions (who may speak for a node), launches (what a keeper is ordered to
do with a job), reports (what a report concerns and what is acknowledged), jobs (which jobs are expected where),
heartbeats (silent and lost nodes).
"""
