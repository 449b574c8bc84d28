"""Experiments as files: saved, checked, and imported into another home.

Reading order: format (the zip file), importing.
"""
