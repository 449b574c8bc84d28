"""What trial schedulers cost, and what they save.

Entry: `benchmarks/__main__.py`. `schedulers` measures a whole manager under virtual time; `digits_asha` how much
training ASHA saves, `pbt_toy` what population based training reaches; `peers` is HyperBand's object alone against Ray
Tune's, `test_ray_decisions` compares what the schedulers decide.
"""
