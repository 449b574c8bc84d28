"""The manager: the one process that decides."""
