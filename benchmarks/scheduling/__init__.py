"""What trial schedulers cost, and what they save.

Entry: `benchmarks/__main__.py`. `schedulers` measures a whole manager under virtual time; `peers` HyperBand's object alone
against Ray Tune's.
"""
