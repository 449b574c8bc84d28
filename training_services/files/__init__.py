"""Files between the manager and the machines of jobs, whatever connects them.

Entry: `collection.Collector`, which copies jobs' files to the manager's disk. Reading order: paths, mirror, collection.
`code` decides which user code travels and builds its archive.
"""
