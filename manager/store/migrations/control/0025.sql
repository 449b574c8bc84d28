-- Version 25 of the control database: experiments whose place in a checkpointStorage an earlier version has left unmarked,
-- so that nothing shows whose it is. Each row goes once that is decided.
CREATE TABLE unmarked_storages (
    experiment_id TEXT PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO unmarked_storages (experiment_id)
SELECT id FROM experiments WHERE json_extract(config, '$.checkpoint_storage') IS NOT NULL;
