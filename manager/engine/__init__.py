"""What the manager does: events in, pure decisions, one commit, then effects."""
