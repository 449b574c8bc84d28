"""SSH connections: a layer that any platform may use. It knows hosts and logins, but no experiment and no job.

Entry: `connection`, the only importer of asyncssh. Reading order: base (what a connection can do), settings,
config, keys, host_keys, login, route (jump hosts), connection, uploads, shell.
"""
