-- The control database: every experiment, trial and trial job, what was sent to the dispatchers, and every change as an
-- event. Times are Unix seconds (REAL). JSON columns hold text in which NaN and infinities are the strings of the wire.

CREATE TABLE experiments (
    id                TEXT PRIMARY KEY,            -- 8 characters [A-Za-z0-9], or the user's own
    name              TEXT NOT NULL,
    status            TEXT NOT NULL,               -- ExperimentStatus
    config            TEXT NOT NULL,               -- JSON, canonical, without secrets
    search_space      TEXT NOT NULL,               -- JSON, the current one
    directory         TEXT NOT NULL,               -- absolute path of experiments/<id>
    seed              INTEGER NOT NULL,
    created_at        REAL NOT NULL,
    trial_concurrency INTEGER NOT NULL,            -- the four limits that can be changed while running
    max_trial_number  INTEGER,
    max_experiment_seconds REAL,
    max_trial_seconds REAL,
    reason            TEXT NOT NULL DEFAULT '',
    error             TEXT NOT NULL DEFAULT '',    -- the traceback when status is ERROR
    next_sequence_id  INTEGER NOT NULL DEFAULT 0,
    next_parameter_id INTEGER NOT NULL DEFAULT 0,
    next_position     INTEGER NOT NULL DEFAULT 1,  -- in dispatcher_inputs
    metrics_told      INTEGER NOT NULL DEFAULT 0,  -- last metrics.id (of the metrics database) sent to it
    active_seconds    REAL NOT NULL DEFAULT 0,     -- time spent RUNNING, for maxExperimentDuration
    started_at        REAL,
    ended_at          REAL,
    revision          INTEGER NOT NULL DEFAULT 1   -- counts the changes of the limits
) STRICT;
CREATE INDEX experiments_by_age ON experiments (created_at, id);
CREATE INDEX experiments_active ON experiments (id) WHERE status NOT IN ('STOPPED', 'VIEWED');

CREATE TABLE trials (
    id             TEXT PRIMARY KEY,               -- 8 characters, unique over all experiments
    experiment_id  TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    sequence_id    INTEGER NOT NULL,
    status         TEXT NOT NULL,                  -- TrialStatus
    parameter_id   INTEGER NOT NULL,               -- of the latest job
    parameters     TEXT NOT NULL,                  -- JSON, of the latest job
    created_at     REAL NOT NULL,
    reason         TEXT NOT NULL DEFAULT '',
    state          TEXT,                           -- JSON, the algorithm's state change that came with the suggestion
    position       INTEGER,                        -- of the request that it answers; NULL: not from the tuner
    source         TEXT NOT NULL DEFAULT 'algorithm',  -- algorithm | customized | retry
    jobs           INTEGER NOT NULL DEFAULT 0,     -- number of its newest job
    failures       INTEGER NOT NULL DEFAULT 0,     -- charged to the trial
    infrastructure_failures INTEGER NOT NULL DEFAULT 0,
    not_before     REAL,                           -- back-off: not to be tried again before
    intermediate_count INTEGER NOT NULL DEFAULT 0,
    latest_value   REAL,                           -- last intermediate metric (NULL when it is not a finite number)
    final_value    REAL,                           -- default of the final metric (NULL when not a finite number)
    final_data     TEXT,                           -- JSON of the final metric
    started_at     REAL,
    ended_at       REAL,
    UNIQUE (experiment_id, sequence_id)
) STRICT;
CREATE INDEX trials_by_status ON trials (experiment_id, status, sequence_id);
CREATE INDEX trials_by_value ON trials (experiment_id, status, final_value, sequence_id);
CREATE INDEX trials_by_position ON trials (experiment_id, position, parameter_id) WHERE position IS NOT NULL;

-- How many trials each experiment has in each status, kept correct by triggers.
CREATE TABLE trial_counts (
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    status        TEXT NOT NULL,
    trials        INTEGER NOT NULL,
    PRIMARY KEY (experiment_id, status)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER trial_counted AFTER INSERT ON trials BEGIN
    INSERT INTO trial_counts (experiment_id, status, trials) VALUES (new.experiment_id, new.status, 1)
    ON CONFLICT (experiment_id, status) DO UPDATE SET trials = trials + 1;
END;
CREATE TRIGGER trial_recounted AFTER UPDATE OF status ON trials WHEN old.status <> new.status BEGIN
    UPDATE trial_counts SET trials = trials - 1 WHERE experiment_id = old.experiment_id AND status = old.status;
    INSERT INTO trial_counts (experiment_id, status, trials) VALUES (new.experiment_id, new.status, 1)
    ON CONFLICT (experiment_id, status) DO UPDATE SET trials = trials + 1;
END;
CREATE TRIGGER trial_uncounted AFTER DELETE ON trials BEGIN
    UPDATE trial_counts SET trials = trials - 1 WHERE experiment_id = old.experiment_id AND status = old.status;
END;

CREATE TABLE trial_jobs (
    id            TEXT PRIMARY KEY,                -- "<trial id>.<number>"
    trial_id      TEXT NOT NULL REFERENCES trials (id) ON DELETE CASCADE,
    experiment_id TEXT NOT NULL,
    number        INTEGER NOT NULL,                -- the generation, from 1
    token         TEXT NOT NULL,                   -- fencing token
    status        TEXT NOT NULL,                   -- TrialJobStatus
    parameter_id  INTEGER NOT NULL,
    parameters    TEXT NOT NULL,                   -- JSON
    members       INTEGER NOT NULL DEFAULT 1,
    stop_reason   TEXT,                            -- EndReason given by the stop request
    end_reason    TEXT,                            -- EndReason
    detail        TEXT NOT NULL DEFAULT '',        -- a sentence: why it waits, why it ended
    parent_job    TEXT,                            -- lineage: the job it was retried or cloned from
    resumed_from_job TEXT,                         -- whose checkpoint it continues
    resumed_from_step INTEGER,
    resume_checkpoint TEXT,
    placement     TEXT,                            -- JSON NodePlacement
    node_id       TEXT,
    pid           INTEGER,
    exit_code     INTEGER,
    signal        INTEGER,
    code_fingerprint TEXT,
    submitted_at  REAL,
    started_at    REAL,
    ended_at      REAL,
    UNIQUE (trial_id, number)
) STRICT;
CREATE INDEX trial_jobs_live ON trial_jobs (experiment_id, trial_id, number) WHERE status <> 'ENDED';

-- The total order of all messages to an experiment's dispatcher.
CREATE TABLE dispatcher_inputs (
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    position      INTEGER NOT NULL,
    kind          TEXT NOT NULL,                   -- class name in manager/dispatcher/protocol.py
    payload       TEXT NOT NULL,                   -- JSON; for ReportMetrics {"first", "last"} metrics.id
    PRIMARY KEY (experiment_id, position)
) STRICT, WITHOUT ROWID;

-- Every change, in order; the stream of changes resumes by id.
CREATE TABLE events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    time          REAL NOT NULL,
    experiment_id TEXT,
    trial_id      TEXT,
    job_id        TEXT,
    kind          TEXT NOT NULL,                   -- see manager/store/tables/events.py
    data          TEXT NOT NULL                    -- JSON
) STRICT;
CREATE INDEX events_by_experiment ON events (experiment_id, id);
CREATE INDEX events_notices ON events (experiment_id, id) WHERE kind = 'notice';

CREATE TABLE nodes (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,                     -- local | remote | …
    status      TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',
    facts       TEXT NOT NULL DEFAULT '{}',        -- JSON: devices, versions
    seen_at     REAL
) STRICT;
