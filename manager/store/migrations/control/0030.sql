-- Version 30 of the control database: since when trial jobs run, by clocks that nothing sets.
ALTER TABLE trial_jobs ADD COLUMN start_moment TEXT;  -- id of the boot of the manager's machine, and its boot time; NULL: not known
ALTER TABLE trial_jobs ADD COLUMN runs_since REAL;  -- the same by the steady clock of the manager that runs; NULL: started_at tells
