-- Version 15 of the control database: finding the trials that have not ended and began with a trial's checkpoint.
CREATE INDEX trials_by_origin ON trials (origin_trial)
WHERE origin_checkpoint IS NOT NULL AND status IN ('WAITING', 'RUNNING', 'PAUSED');
