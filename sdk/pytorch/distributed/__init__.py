"""Several processes that train together, and the devices they use.

Entry: `ranks`, what a run may do with its processes. Reading order: ranks, shards (tensors that are
split over them), launch (how they come to be), processes (how each dies with its parent).
"""
