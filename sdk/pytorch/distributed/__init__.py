"""Several processes that train together, and the devices they use.

Reading order: collectives, devices, spawn (processes started by us), torchrun (started by torchrun), processes,
replicas.
"""
