-- Version 10 of the control database: how many of a trial's newest jobs have ended without a report or a checkpoint.
ALTER TABLE trials ADD COLUMN fruitless_jobs INTEGER NOT NULL DEFAULT 0;
