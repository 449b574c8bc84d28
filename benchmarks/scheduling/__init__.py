"""What trial schedulers save: training that was counted, not time.

Entry: `measure` of each module, called by `benchmarks/__main__.py`.
"""
