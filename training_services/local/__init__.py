"""Trials on the manager's own machine."""
