-- Version 9 of the metrics databases: the checkpoint that a job was handed and has found to be damaged. NULL: none.
ALTER TABLE journals ADD COLUMN damaged TEXT;
