-- One experiment's metrics database. Offsets are acknowledged in the transaction that stores what they stand for.

CREATE TABLE metrics (
    id       INTEGER PRIMARY KEY,
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,                     -- the job's number
    member   INTEGER NOT NULL DEFAULT 0,
    offset   INTEGER NOT NULL,                     -- byte offset in the member's journal: the record's identity
    kind     TEXT NOT NULL,                        -- intermediate | final | lost | unreadable
    sequence INTEGER NOT NULL,                     -- counts the records of this kind in (job, member), from 0
    step     INTEGER,                              -- the step the user named
    value    REAL,                                 -- the default number (NULL when it is not finite; see data)
    data     TEXT,                                 -- JSON, when the value is not simply the finite number in `value`
    time     REAL NOT NULL,
    UNIQUE (trial_id, job, member, offset)
) STRICT;
CREATE INDEX metrics_by_trial ON metrics (trial_id, kind, id);

CREATE TABLE offsets (
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,
    member   INTEGER NOT NULL,
    offset   INTEGER NOT NULL,                     -- everything before it is stored
    intermediates INTEGER NOT NULL DEFAULT 0,      -- how many of each kind: the next sequence numbers
    finals   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (trial_id, job, member)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    id       INTEGER PRIMARY KEY,
    trial_id TEXT NOT NULL,
    job      INTEGER NOT NULL,
    member   INTEGER NOT NULL,
    offset   INTEGER NOT NULL,
    step     INTEGER,
    path     TEXT NOT NULL,                        -- absolute
    sequence INTEGER NOT NULL,                     -- intermediates of its job that came before it
    time     REAL NOT NULL,
    UNIQUE (trial_id, job, member, offset)
) STRICT;
