"""The process that hosts the algorithms.

Entry: `host`. Reading order: host, session (messages to algorithms), interface (what hosts a tuner or an assessor),
builtin, custom (the user's own classes), scheduling (a trial scheduler beside its tuner), saving (states for a restart
in bounded time).
"""
