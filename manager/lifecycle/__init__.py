"""Pure state machines: no clock, no I/O, no asyncio.

Reading order: states, machine (transition tables), trial, job, experiment, reasons (end reason to retry decision),
failures (what the ends of trials say about their experiment).
"""
