"""Built-in tuners: one module for each, imported only when it is asked for.

Entry: `algorithms/registry.py`, which finds the class of a name; `algorithms/catalog.py` lists them.
`optuna_tuner` is what Optuna's samplers share, with `flat_space` and `optuna_study`, which imports Optuna; `hyperband`
has the brackets that `bohb` plays, too.
"""
