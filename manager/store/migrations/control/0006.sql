-- Version 6 of the control database: which database it is, and which experiments it has deleted.
-- One row. `id` is also in the home, beside the database. Jobs that began before `accepted_at` and that the database does
-- not know may be stopped: a person has said so.
CREATE TABLE home (id TEXT NOT NULL, accepted_at REAL NOT NULL DEFAULT 0) STRICT;
INSERT INTO home (id) VALUES (lower(hex(randomblob(16))));
CREATE TABLE deleted_experiments (
    id         TEXT PRIMARY KEY,
    deleted_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
