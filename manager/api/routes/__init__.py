"""The routes, one module for each noun.

Entry: `trials.routes`; each module has such a table, which `manager/api/groups.py` lists and
`manager/api/description.py` builds. The page, in `dashboard`, is served without them.
"""
