"""Built-in assessors: one module for each, imported only when it is asked for.

Entry: `algorithms/registry.py`, which finds the class of a name; `algorithms/catalog.py` lists them.
`curves` is what curve fitting fits.
"""
