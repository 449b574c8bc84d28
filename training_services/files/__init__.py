"""Files between the manager and nodes, whatever connects them.

Entry: `mirror`, which copies a node's files to the manager's disk. `code` decides which user code travels and builds
its archive.
"""
