"""From a login to a running keeper on a machine.

Entry: `node`, the first contact. Reading order: node, archive (the keeper's one file), keeper_commands, tunnel (the way
back to the manager).
"""
