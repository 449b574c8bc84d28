"""One SSH connection to one machine. The only module that imports asyncssh."""

import asyncssh

__all__ = ["asyncssh"]
