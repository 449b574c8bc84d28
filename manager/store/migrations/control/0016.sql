-- Version 16 of the control database: which experiment gets free GPUs first.
ALTER TABLE experiments ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
-- What an experiment has used lately, for turns among experiments of one priority.
CREATE INDEX trial_jobs_with_gpus ON trial_jobs (experiment_id, ended_at) WHERE status = 'ENDED' AND counted_gpus > 0;
