-- Version 27 of the control database: who has paused a trial. Only that one has it run again.
ALTER TABLE trials ADD COLUMN paused_by TEXT;  -- USER, EXPERIMENT or SCHEDULER: of a trial that is PAUSED or being paused
-- An earlier version has left it open. What the input log has paused is the scheduler's, and anything else the user's.
UPDATE trials SET paused_by = coalesce(
    (SELECT CASE
        WHEN job.stop_position IS NOT NULL THEN 'SCHEDULER'
        WHEN job.detail = 'paused with its experiment' THEN 'EXPERIMENT'
     END FROM trial_jobs AS job
     WHERE job.trial_id = trials.id AND job.number = trials.jobs AND job.stop_reason = 'PAUSED'),
    CASE WHEN trials.reason = 'paused with its experiment' THEN 'EXPERIMENT' END,
    'USER')
WHERE status = 'PAUSED' OR EXISTS (
    SELECT 1 FROM trial_jobs AS job
    WHERE job.trial_id = trials.id AND job.number = trials.jobs AND job.stop_reason = 'PAUSED' AND job.status = 'STOPPING'
);
-- A trial may begin with a checkpoint with which the trial began that it was cloned from: finding those of a trial that
-- others began with.
DROP INDEX trials_by_origin;
CREATE INDEX trials_by_origin ON trials (substr(origin_job, 1, instr(origin_job, '.') - 1))
WHERE origin_checkpoint IS NOT NULL AND status IN ('WAITING', 'RUNNING', 'PAUSED');
