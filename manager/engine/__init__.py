"""What the manager does: events in, pure decisions, one commit, then effects.

Entry: `manager.Manager`, what REST calls. Reading order: manager, context (what all experiments share), supervisor
(which experiments run here), trials (what users do with single trials), creation, feasibility (which machines can be
used), loop (one experiment); then unloaded (experiments that cannot be loaded), cleanup, transient_errors (which of
them pass by themselves), archive, imported_data (imported results), job_files, log_search (in the output of trials),
platforms (machines without an experiment), dispatchers, code, nodes (records, load over time, connections),
importance (of parameters), curve_packing (curves of charts), saved_views.
"""
