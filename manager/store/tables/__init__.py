"""The tables of the two databases, a module each: every statement that reads or changes a table is called from here.

Entry: `experiments`, to which all other rows but those of nodes belong. Reading order: experiments, trials, jobs,
events and dispatcher_inputs (the input log) in the control database; journals (chunks of reports become rows) and
metrics and checkpoints in each experiment's own, curves (of many trials); nodes; saved_views;
scheduler_tables; home_place (one row, and what a move changes in all tables).
"""
