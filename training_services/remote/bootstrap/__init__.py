"""From a login to a running keeper on a machine.

Entry: `node`, the first contact. Reading order: node, keeper_commands, archive (the file that is installed), tunnel
(the connection back to the manager).
"""
