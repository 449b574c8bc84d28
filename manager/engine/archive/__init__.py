"""Experiments as files: saved, checked, and imported into another home.

Entry: `format.ExperimentArchive`. Reading order: format (the zip file), importing.
"""
