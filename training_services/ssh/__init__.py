"""SSH connections: a layer that any platform may use. It knows hosts and logins, but no experiment and no job.

Entry: `connection`. Reading order: base (what a connection can do), settings, host_keys, login (one server), route
(jump hosts), connection, uploads, shell, errors (why a machine cannot be used). Nothing else imports asyncssh
(docs/decisions/0028).
"""
