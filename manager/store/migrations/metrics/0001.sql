-- One experiment's metrics database. Offsets are acknowledged in the transaction that stores what they stand for.

CREATE TABLE metrics (
    id       INTEGER PRIMARY KEY,                  -- in the order of storing; never reused, nothing is deleted
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,                     -- the job's number
    member   INTEGER NOT NULL,
    offset   INTEGER NOT NULL,                     -- byte offset in the member's journal: the record's identity
    kind     TEXT NOT NULL,                        -- intermediate | final | lost | unreadable
    sequence INTEGER NOT NULL,                     -- counts this kind in (job, member); for intermediates
                                                   -- from where in the curve the job resumed
    step     INTEGER,                              -- the step the user named
    value    REAL,                                 -- the default number (NULL when it is not finite; see data)
    data     TEXT,                                 -- JSON, when what was reported is not simply the number in `value`
    time     REAL NOT NULL
) STRICT;
-- (trial_id, job, member, offset) is unique because rows are only added together with their journal's offset below.
CREATE INDEX metrics_by_trial ON metrics (trial_id, kind, id);

CREATE TABLE journals (
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,
    member   INTEGER NOT NULL,
    offset   INTEGER NOT NULL DEFAULT 0,           -- everything before it is stored
    first_sequence INTEGER NOT NULL DEFAULT 0,     -- the point of its trial's curve at which the job resumed
    intermediates INTEGER NOT NULL DEFAULT 0,      -- how many of each kind are stored
    finals   INTEGER NOT NULL DEFAULT 0,
    losses   INTEGER NOT NULL DEFAULT 0,
    unreadables INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (trial_id, job, member)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    id       INTEGER PRIMARY KEY,
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,
    member   INTEGER NOT NULL,
    offset   INTEGER NOT NULL,
    step     INTEGER,
    path     TEXT NOT NULL,                        -- relative to its job's directory
    sequence INTEGER NOT NULL,                     -- how many points its trial's curve had before it
    time     REAL NOT NULL,
    UNIQUE (trial_id, job, member, offset)
) STRICT;
