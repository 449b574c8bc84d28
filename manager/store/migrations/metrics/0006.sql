-- Version 6 of the metrics databases: which checkpoints are kept, and which are to be removed from their nodes.
ALTER TABLE checkpoints ADD COLUMN value REAL;           -- of the metric reported with it or last before it, if finite
ALTER TABLE checkpoints ADD COLUMN expendable INTEGER;   -- what goes first at the quota (lifecycle/checkpoints.py);
                                                         -- NULL: not decided over yet
ALTER TABLE checkpoints ADD COLUMN removed_at REAL;      -- when its keeper confirmed the deletion; NULL: not yet
CREATE INDEX checkpoints_kept ON checkpoints (trial_id, id) WHERE deleted_at IS NULL;
CREATE INDEX checkpoints_expendable ON checkpoints (expendable, id) WHERE deleted_at IS NULL;
CREATE INDEX checkpoints_by_value ON checkpoints (value) WHERE deleted_at IS NULL AND value IS NOT NULL;
CREATE INDEX checkpoints_to_remove ON checkpoints (id) WHERE deleted_at IS NOT NULL AND removed_at IS NULL;

-- How much all checkpoints that were not deleted take, kept correct by triggers.
CREATE TABLE checkpoint_total (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO checkpoint_total (id, bytes) SELECT 1, coalesce(sum(bytes), 0) FROM checkpoints WHERE deleted_at IS NULL;
CREATE TRIGGER checkpoint_counted AFTER INSERT ON checkpoints WHEN new.bytes IS NOT NULL BEGIN
    UPDATE checkpoint_total SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER checkpoint_discounted AFTER UPDATE OF deleted_at ON checkpoints
WHEN old.deleted_at IS NULL AND new.deleted_at IS NOT NULL AND new.bytes IS NOT NULL BEGIN
    UPDATE checkpoint_total SET bytes = bytes - new.bytes;
END;
