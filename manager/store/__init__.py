"""SQLite files that are the referee of every change: one control database, one metrics database per experiment.

Entry: `database.Database`. Reading order: database, writer (one thread, group commit), readers, read_process,
connections, migrations, rows, statements, tables, trial_table (filters, and orders by any column), errors; then
database_identity and verification (is it the right database, and whole), open_databases.
"""
