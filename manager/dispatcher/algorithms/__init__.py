"""The algorithms that a dispatcher hosts, and how they are found.

Entry: `registry`. Reading order: base (the contract), registry, catalog (names and arguments), tuners, assessors,
schedulers, registered (the user's own by name); importance, the main module of a process of its own.
"""
