"""Trials on machines that are reached over SSH.

Entry: `service`. Reading order: service, staging (what a job needs on its machine), machines, bootstrap, files; and
    `ssh` beside this package.
"""
