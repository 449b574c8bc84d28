"""The routes, one module for every noun.

`manager/api/application.py` mounts them.
"""
