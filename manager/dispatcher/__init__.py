"""The process that hosts tuners, assessors and trial schedulers, and the manager's end of it.

Entry: `protocol`, what both ends speak. Reading order: protocol, client (the manager's end), `__main__` and host (the
process), algorithms; class_args asks a user's own validator.
"""
