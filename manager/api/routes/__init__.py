"""The routes, one module for each noun.

Entry: `routes` of each module, which `manager/api/groups.py` lists and `manager/api/description.py` builds; the page,
in `dashboard`, is served without them.
"""
