-- Version 12 of the control database: what was decided of trials that exist already. A new trial is the decision itself.
CREATE TABLE decisions (
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    parameter_id  INTEGER NOT NULL,                -- the requested id that this answers
    position      INTEGER NOT NULL,                -- of the request
    kind          TEXT NOT NULL,                   -- DecisionKind: resume | clone
    trial_id      TEXT NOT NULL REFERENCES trials (id) ON DELETE CASCADE,
    decided_at    REAL NOT NULL,
    parameters    TEXT,                            -- JSON, of a clone: those of the trial's next job
    state         TEXT,                            -- JSON, the algorithm's state change that came with the decision
    donor_trial   TEXT,                            -- of a clone: whose checkpoint the next job begins with
    donor_job     TEXT,
    donor_checkpoint TEXT,                         -- as in trial_jobs.resume_checkpoint
    donor_node    TEXT,                            -- as in trial_jobs.resume_node_id
    donor_sequence INTEGER,                        -- the point of the donor's curve at which it was saved
    job           INTEGER,                         -- of a clone: number of the job that begins with it; NULL: not yet
    PRIMARY KEY (experiment_id, parameter_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX decisions_by_position ON decisions (experiment_id, position);
CREATE INDEX decisions_by_trial ON decisions (trial_id, job);
