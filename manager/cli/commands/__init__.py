"""The commands, one module for each noun or verb that a user types.

`manager/cli/main.py` lists them; a module is imported when its command is called.
"""
