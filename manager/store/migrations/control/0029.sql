-- Version 29 of the control database: the version of the rules by which an experiment's built-in algorithms decide, from
-- its creation to its end. 1: that of all experiments of earlier versions of Proctor.
ALTER TABLE experiments ADD COLUMN rules INTEGER NOT NULL DEFAULT 1;
