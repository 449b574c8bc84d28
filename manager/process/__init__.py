"""The manager as a process of the machine: started, found, stopped, logged; its sockets and its database.

Entry: `daemon.ensure_manager`. Reading order: daemon, instance (one manager per home), control_database, home_place
(moved and copied homes), sockets, certificate (what keepers pin), server (HTTP on them), log.
"""
