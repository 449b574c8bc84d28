-- Version 4 of the metrics databases: how long a trial had run when it reported. NULL in journals of earlier versions.
ALTER TABLE journals ADD COLUMN started_at REAL;     -- Unix time at which the job's process began, by its machine
ALTER TABLE journals ADD COLUMN first_seconds REAL;  -- how long the trial had run at the point where the job resumed
