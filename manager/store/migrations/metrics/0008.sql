-- Version 8 of the metrics databases: how long a job had run when it reported, by a clock that nothing sets.
-- Without its waits for verdicts. NULL: its record does not say so (one of an earlier version), and the times tell.
ALTER TABLE metrics ADD COLUMN seconds REAL;
