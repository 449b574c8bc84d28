"""Built-in trial schedulers: one module for each family, imported only when it is asked for. Each is a
`proctor.sdk.scheduler.TrialScheduler`, where their contract is.

Entry: `algorithms/registry.py`, which finds the class of a name; `algorithms/catalog.py` lists them.

Reading order: base (losses, times and words that all share), median_stopping, asha, hyperband,
mutations (what PBT does to parameters), pbt.
"""
