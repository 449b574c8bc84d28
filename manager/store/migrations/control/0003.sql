-- Version 3 of the control database: nodes that get no new jobs, over restarts of the manager.
ALTER TABLE nodes ADD COLUMN hold TEXT NOT NULL DEFAULT '';  -- a clause: "drained: …", "quarantined: …"; '': it gets jobs
