"""Platform remote over real SSH servers, and very many machines that are only played.

Entry: `remote` and `many_machines`. Reading order: ssh_machines (the servers), remote; simulated_machines (a manager
without machines behind it), simulated_keepers, many_machines.
"""
