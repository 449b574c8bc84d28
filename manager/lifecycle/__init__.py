"""Pure state machines: no clock, no I/O, no asyncio.

Entry: `states`, every status there is. Reading order: states, machine (transition tables), trial, job, experiment,
retries (from an end reason to the retry decision and budget), experiment_failures (what the ends of trials say about
their experiment), checkpoints (which ones are kept).
"""
