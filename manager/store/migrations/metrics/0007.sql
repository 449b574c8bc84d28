-- Version 7 of the metrics databases: visible curves as blobs, so that charts of all trials need not read every row.
-- A packed curve is what the rows gave while the trial's journals were as `journals` and `journal_bytes` say. Journals only
-- grow, so one that is out of date is recognized, and the rows are read.

CREATE TABLE packed_curves (
    id            INTEGER PRIMARY KEY,
    trial_id      TEXT NOT NULL,
    member        INTEGER NOT NULL,              -- whose curve it is
    journals      INTEGER NOT NULL,              -- how many journals the trial had, of all jobs and members
    journal_bytes INTEGER NOT NULL,              -- how far all of them together were stored
    has_all_keys  INTEGER NOT NULL,              -- 0: it has more keys than are packed
    first_time    REAL NOT NULL,                 -- Unix time of its first point
    steps         BLOB NOT NULL,                 -- of each point, as all of these: a little-endian float32
    seconds       BLOB NOT NULL,                 -- after first_time
    "values"      BLOB NOT NULL,                 -- NaN for one that is missing or does not fit
    UNIQUE (trial_id, member)
) STRICT;

CREATE TABLE packed_keys (
    curve    INTEGER NOT NULL REFERENCES packed_curves (id) ON DELETE CASCADE,
    key      TEXT NOT NULL,                      -- of what was reported, nested ones with dots
    "values" BLOB NOT NULL,
    PRIMARY KEY (curve, key)
) STRICT;
