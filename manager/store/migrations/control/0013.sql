-- Version 13 of the control database: what trial jobs have used, and the limit of GPU-hours.
ALTER TABLE experiments ADD COLUMN max_gpu_hours REAL;
ALTER TABLE trial_jobs ADD COLUMN counted_gpus REAL NOT NULL DEFAULT 0;  -- a share of one that n trials may share: 1/n
ALTER TABLE trial_jobs ADD COLUMN cpu_seconds REAL;    -- processor time of its processes; NULL: not known
UPDATE trial_jobs SET counted_gpus = json_array_length(placement, '$.gpus')
WHERE json_type(placement, '$.gpus') = 'array';

-- What the ended jobs of each experiment have used on each node, kept correct by triggers.
CREATE TABLE job_usage (
    experiment_id   TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    node_id         TEXT NOT NULL,                     -- '': its platform did not say
    gpu_seconds     REAL NOT NULL,                     -- counted_gpus × the time from started_at to ended_at
    cpu_seconds     REAL NOT NULL,                     -- of those jobs of which it is known
    unmeasured_jobs INTEGER NOT NULL,                  -- how many have run, and it is not known
    PRIMARY KEY (experiment_id, node_id)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER ended_job_added AFTER INSERT ON trial_jobs WHEN new.status = 'ENDED' AND new.started_at IS NOT NULL
BEGIN
    INSERT INTO job_usage (experiment_id, node_id, gpu_seconds, cpu_seconds, unmeasured_jobs) VALUES (
        new.experiment_id, coalesce(new.node_id, ''),
        new.counted_gpus * max(coalesce(new.ended_at, 0) - new.started_at, 0),
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
        new.counted_gpus * max(coalesce(new.ended_at, 0) - new.started_at, 0),
        coalesce(new.cpu_seconds, 0), new.cpu_seconds IS NULL
    )
    ON CONFLICT (experiment_id, node_id) DO UPDATE SET
        gpu_seconds = gpu_seconds + excluded.gpu_seconds, cpu_seconds = cpu_seconds + excluded.cpu_seconds,
        unmeasured_jobs = unmeasured_jobs + excluded.unmeasured_jobs;
END;
INSERT INTO job_usage (experiment_id, node_id, gpu_seconds, cpu_seconds, unmeasured_jobs)
SELECT trial_jobs.experiment_id, coalesce(node_id, ''),
    sum(counted_gpus * max(coalesce(trial_jobs.ended_at, 0) - trial_jobs.started_at, 0)), 0, count(*)
FROM trial_jobs JOIN experiments ON experiments.id = trial_jobs.experiment_id
WHERE trial_jobs.status = 'ENDED' AND trial_jobs.started_at IS NOT NULL
GROUP BY trial_jobs.experiment_id, coalesce(node_id, '');
