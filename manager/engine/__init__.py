"""What the manager does: events in, pure decisions, one commit, then effects.

Entry: `manager.Manager`, what REST calls. Reading order: manager, supervisor (which experiments run here), creation,
loop (one experiment); then unloaded (experiments that cannot be loaded), cleanup, retries (when what has
failed is tried again), archive, dispatchers, code, nodes.
"""
