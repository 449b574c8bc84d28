-- Version 9 of the control database: what is counted of the trials that end, since the experiment was created or resumed
-- last. See manager/lifecycle/experiment_failures.py.
ALTER TABLE experiments ADD COLUMN resumes INTEGER NOT NULL DEFAULT 0;        -- how often it was resumed
ALTER TABLE experiments ADD COLUMN ended_trials INTEGER NOT NULL DEFAULT 0;   -- those that count
ALTER TABLE experiments ADD COLUMN failed_trials INTEGER NOT NULL DEFAULT 0;
ALTER TABLE experiments ADD COLUMN alike_failures INTEGER NOT NULL DEFAULT 0; -- of the first: failed with one cause
ALTER TABLE experiments ADD COLUMN failure_cause TEXT NOT NULL DEFAULT '';    -- of the first that failed
ALTER TABLE experiments ADD COLUMN trials_without_final INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trial_jobs ADD COLUMN resumes INTEGER NOT NULL DEFAULT 0;         -- of its experiment when it was submitted
-- The first trials of an experiment that has some are over: it is not judged by the next ones.
UPDATE experiments SET ended_trials = coalesce((
    SELECT sum(trials) FROM trial_counts
    WHERE experiment_id = experiments.id AND status IN ('SUCCEEDED', 'FAILED', 'EARLY_STOPPED')
), 0);
