-- Version 15 of the control database: finding the trials that have not ended and continue from a trial's checkpoint.
CREATE INDEX trials_by_origin ON trials (origin_trial)
WHERE origin_checkpoint IS NOT NULL AND status IN ('WAITING', 'RUNNING', 'PAUSED');
CREATE INDEX decisions_by_donor ON decisions (substr(donor_job, 1, instr(donor_job, '.') - 1))
WHERE donor_job IS NOT NULL;
