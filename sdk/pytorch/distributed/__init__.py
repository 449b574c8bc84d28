"""Several processes that train together, and the devices they use.

Entry: `ranks`, what a run may do with its processes. Reading order: ranks, launch (how they come to be), processes (how
each dies with its parent).
"""
