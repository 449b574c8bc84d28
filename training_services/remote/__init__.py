"""Trials on machines that are reached over SSH.

Entry: `service`. Reading order: service, settings, machines (claimed, connected, held), bootstrap (from a login to a
running keeper), files.
"""
