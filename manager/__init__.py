"""The manager: the one process that decides.

Entry: `app`, the composition root; `__main__` runs it in the foreground. Reading order: app, engine (what it does),
store, lifecycle and placement (pure rules), dispatcher (algorithms), api and cli (how people reach it), config,
process; then events (who waits for changes), metrics (for Prometheus), security, `named_tokens`, `actors` (who
does what), settings, clock, errors, file_descriptors, control_characters (kept off terminals), `field_docs` (texts of
schemas), trial_commands (whether one can run at all), simulation (all of it under virtual time), and sample (a made-up
experiment to look at).
"""
