-- Version 24 of the control database: what people see of an experiment's trial scheduler, and whose first parameters those
-- of an id are.
CREATE TABLE scheduler_tables (
    experiment_id TEXT PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE,
    tables        TEXT NOT NULL,  -- JSON: as its `describe` returns them, with the trials' numbers in the experiment
    updated_at    REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX trial_jobs_by_first_parameters ON trial_jobs (experiment_id, parameter_id) WHERE number = 1;
CREATE INDEX trials_by_first_parameters ON trials (experiment_id, parameter_id) WHERE jobs = 0;
