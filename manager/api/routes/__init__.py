"""The routes, one module for every noun."""
