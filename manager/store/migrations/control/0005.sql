-- Version 5 of the control database: which decision of an algorithm stopped a trial job.
ALTER TABLE trial_jobs ADD COLUMN stop_position INTEGER;  -- in dispatcher_inputs: the report that was judged; NULL: no algorithm
