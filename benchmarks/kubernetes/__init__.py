"""Platform kubernetes over the control plane of the tests.

Entry: `cluster_trials` and `cluster_scale`, which share `clusters`.
"""
