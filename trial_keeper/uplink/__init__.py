"""The keeper's connection to the manager.

Entry: `session`, which finds the manager, registers, takes commands and sends reports, and reconnects. `http_client` is
the HTTP/1.1 it speaks over a Unix socket or TLS, `pointer` says which and where.
"""
