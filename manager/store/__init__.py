"""SQLite files that are the referee of every change: one control database, one metrics database per experiment."""
