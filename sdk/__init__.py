"""What runs in the user's own processes: a trial's calls, and the client that controls experiments.

Entry: `import proctor`, which has the trial's calls (`trial`) and `Experiment`. Reading order: trial, channel,
journal, disk_reserve (room for what the journal cannot take), protocol (files shared with the keeper), metrics,
checkpoints; then space (search spaces), tuner, assessor and scheduler (base classes of the user's own) with testing
(their contract as tests), client (the control side), pytorch (the trainer), compat (the stand-in for `nni`), bundle
(what makes `proctor` and `nni` importable in a trial). Below all of them: files, errors, disk_errors, quick_json and
json_input, process_limits, failpoints.
"""
