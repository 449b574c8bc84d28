"""Training services: where trial jobs run."""
