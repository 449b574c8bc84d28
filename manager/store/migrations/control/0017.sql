-- Version 17 of the control database: how people sort their experiments.
ALTER TABLE experiments ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';      -- JSON: a list of words, each once
ALTER TABLE experiments ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;  -- 1: not listed once it has ended
