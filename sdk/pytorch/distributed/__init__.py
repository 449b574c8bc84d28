"""Several processes that train together, and the devices they use.

Entry: `collectives`, what a run may call of its ranks. Reading order: collectives, devices, spawn (processes started by
us), torchrun (started by torchrun), processes, replicas.
"""
