"""Trials on the manager's own machine.

Entry: `service`. `keeper` keeps the keeper of this machine alive.
"""
