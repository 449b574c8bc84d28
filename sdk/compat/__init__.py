"""What others have made, taken over: packages that stand in for theirs, and their checkpoints.

Entry: `nni`, for code written for NNI 3.0: put this folder first on PYTHONPATH, and `import nni` finds ours.
`nni_channel` is for NNI's own package in a trial of Proctor. `helios_checkpoints` migrates checkpoints of Helios and of
older versions of the trainer; it is not sent to machines.
"""
