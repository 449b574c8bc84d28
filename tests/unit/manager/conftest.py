"""How property tests run here: no test asserts a time, and on a loaded machine any example may take some."""

from hypothesis import HealthCheck, settings

settings.register_profile("loaded machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded machine")
