"""From a login to a running keeper on a machine.

Entry: `node`, the first contact. Reading order: node, keeper_commands, tunnel (the connection back to the manager).
"""
