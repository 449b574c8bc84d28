-- Why an algorithm has decided so of a trial, as a clause.
ALTER TABLE decisions ADD COLUMN reason TEXT NOT NULL DEFAULT '';
