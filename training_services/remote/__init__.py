"""Trials on machines that are reached over SSH.

Entry: `service`. Reading order: service, staging (what a job needs on its machine), machines (claimed, connected,
held), bootstrap (from a login to a running keeper), files, settings; the connections are in `training_services/ssh`.
"""
