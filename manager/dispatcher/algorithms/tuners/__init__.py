"""Built-in tuners: one module each, imported only when it is asked for."""
