"""What runs in the user's own processes: a trial's calls, and the client that controls experiments.

Entry: `import proctor`, which has the trial's calls (`trial`) and `Experiment`. Reading order: trial, channel, journal,
protocol (files shared with the keeper), checkpoints; then space (search spaces), client (the control side), pytorch
(the trainer), compat (the stand-in for `nni`).
"""
