-- Version 20 of the control database: pages with a filter, an order and columns that people have named.
CREATE TABLE saved_views (
    experiment_id TEXT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    name          TEXT NOT NULL,
    page          TEXT NOT NULL,  -- the last part of its address: trials, curves, relations
    query         TEXT NOT NULL,  -- the query string of its address, without the question mark
    saved_at      REAL NOT NULL,
    saved_by      TEXT NOT NULL,  -- the name of the token; empty: it came with an archive
    PRIMARY KEY (experiment_id, name)
) STRICT, WITHOUT ROWID;
