-- Version 21 of the control database: who has asked for a job's stop. NULL: no one, or it is older than this.
ALTER TABLE trial_jobs ADD COLUMN stopped_by TEXT;  -- as events.actor
