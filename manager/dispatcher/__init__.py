"""The process that hosts tuners and assessors, and the manager's end of it."""
