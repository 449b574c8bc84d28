"""Built-in assessors: one module each, imported only when it is asked for."""
