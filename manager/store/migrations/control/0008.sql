-- Version 8 of the control database: whether the platform of a stopped experiment still has to clean up after it (1).
ALTER TABLE experiments ADD COLUMN clean_up_owed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX experiments_owing ON experiments (id) WHERE clean_up_owed;
