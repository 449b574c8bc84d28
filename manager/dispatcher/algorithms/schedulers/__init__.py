"""Built-in trial schedulers: one module for each family, imported only when it is asked for. `proctor.sdk.scheduler` is
their contract.

Reading order: base (losses, times and words that all share), median_stopping, asha, hyperband, pbt.
"""
