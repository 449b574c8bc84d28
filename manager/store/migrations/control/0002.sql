-- Version 2 of the control database: where a trial job begins, and why there.
ALTER TABLE trial_jobs ADD COLUMN start_reason TEXT NOT NULL DEFAULT '';  -- a clause: "from checkpoint …", "from the start: …"
ALTER TABLE trial_jobs ADD COLUMN resume_node_id TEXT;                    -- the node on which its checkpoint was saved
