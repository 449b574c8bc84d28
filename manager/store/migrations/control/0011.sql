-- Version 11 of the control database: what a trial was cloned or retried from.
ALTER TABLE trials ADD COLUMN origin_trial TEXT;       -- the trial whose parameters or checkpoint it began with
ALTER TABLE trials ADD COLUMN origin_job TEXT;         -- the job whose checkpoint it begins with, if it does
ALTER TABLE trials ADD COLUMN origin_checkpoint TEXT;  -- that checkpoint, as in jobs.resume_checkpoint
