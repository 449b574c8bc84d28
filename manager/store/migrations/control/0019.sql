-- Version 19 of the control database: how busy nodes were, and who held their GPUs when.
CREATE TABLE node_samples (
    node_id     TEXT NOT NULL,
    minute      INTEGER NOT NULL,                  -- since 1970; old ones are deleted as new ones are written
    samples     TEXT NOT NULL,                     -- JSON: what was measured in this minute, see tables/nodes.py
    PRIMARY KEY (node_id, minute)
) STRICT, WITHOUT ROWID;
CREATE INDEX trial_jobs_by_node ON trial_jobs (node_id, ended_at) WHERE status = 'ENDED';
