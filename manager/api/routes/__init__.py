"""The routes, one module for each noun.

Entry: `router` of each module, which `manager/api/application.py` mounts.
"""
