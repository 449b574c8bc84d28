-- Version 28 of the control database: how long trial jobs have run, by a clock that nothing sets.
ALTER TABLE trial_jobs ADD COLUMN run_seconds REAL;  -- from start to end; NULL: not known, and the times tell
ALTER TABLE trial_jobs ADD COLUMN verdict_seconds REAL NOT NULL DEFAULT 0;  -- of them, for how many it waited for verdicts

DROP TRIGGER ended_job_added;
DROP TRIGGER job_ended;
CREATE TRIGGER ended_job_added AFTER INSERT ON trial_jobs WHEN new.status = 'ENDED' AND new.started_at IS NOT NULL
BEGIN
    INSERT INTO job_usage (experiment_id, node_id, gpu_seconds, cpu_seconds, unmeasured_jobs) VALUES (
        new.experiment_id, coalesce(new.node_id, ''),
        new.counted_gpus * coalesce(new.run_seconds, max(coalesce(new.ended_at, 0) - new.started_at, 0)),
        coalesce(new.cpu_seconds, 0), new.cpu_seconds IS NULL
    )
    ON CONFLICT (experiment_id, node_id) DO UPDATE SET
        gpu_seconds = gpu_seconds + excluded.gpu_seconds, cpu_seconds = cpu_seconds + excluded.cpu_seconds,
        unmeasured_jobs = unmeasured_jobs + excluded.unmeasured_jobs;
END;
CREATE TRIGGER job_ended AFTER UPDATE OF status ON trial_jobs
WHEN old.status <> 'ENDED' AND new.status = 'ENDED' AND new.started_at IS NOT NULL
BEGIN
    INSERT INTO job_usage (experiment_id, node_id, gpu_seconds, cpu_seconds, unmeasured_jobs) VALUES (
        new.experiment_id, coalesce(new.node_id, ''),
        new.counted_gpus * coalesce(new.run_seconds, max(coalesce(new.ended_at, 0) - new.started_at, 0)),
        coalesce(new.cpu_seconds, 0), new.cpu_seconds IS NULL
    )
    ON CONFLICT (experiment_id, node_id) DO UPDATE SET
        gpu_seconds = gpu_seconds + excluded.gpu_seconds, cpu_seconds = cpu_seconds + excluded.cpu_seconds,
        unmeasured_jobs = unmeasured_jobs + excluded.unmeasured_jobs;
END;
