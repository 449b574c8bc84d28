"""The commands, one module for each noun or verb that a user types.

Entry: `manager/cli/main.py`, which lists them; a module is imported when its command is called.
"""
