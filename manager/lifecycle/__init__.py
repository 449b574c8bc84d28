"""Pure state machines: no clock, no I/O, no asyncio."""
