"""What the manager does: events in, pure decisions, one commit, then effects.

Entry: `manager.Manager`, what REST calls. Reading order: manager, supervisor (which experiments run here), creation,
loop (one experiment); then unloaded (experiments that cannot be loaded), cleanup, passing_errors (which of them pass by
themselves), archive, dispatchers, code, nodes.
"""
