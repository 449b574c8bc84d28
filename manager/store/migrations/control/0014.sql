-- Version 14 of the control database: what a job may continue from.
ALTER TABLE trial_jobs ADD COLUMN checkpoints TEXT;  -- JSON: what its service was offered, in order; NULL: nothing
