"""Packages that stand in for others. Put this folder first on PYTHONPATH and `import nni` finds ours.

Entry: `nni`, for code written for NNI 3.0. `nni_channel` is for NNI's own package in a trial of Proctor.
"""
