"""The manager: the one process that decides.

Entry: `app`, the composition root. Reading order: app, engine (what it does), store, lifecycle and placement (pure
rules), dispatcher (algorithms), api and cli (how people reach it), config, process.
"""
