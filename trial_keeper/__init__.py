"""The trial keeper: the daemon beside the trials on one node."""
