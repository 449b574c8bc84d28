"""The manager as a process of the machine: started, found, stopped, logged; its sockets and its database.

Reading order: daemon, instance (one manager per home), control_database, sockets, log.
"""
