"""A training service without processes, for tests and simulations.

Entry: `service.InMemoryTrainingService`. `machine` runs jobs that follow the scripts of `scripts`.
"""
