-- Version 7 of the control database: until when a trial may save that was asked to stop (Unix time).
ALTER TABLE trial_jobs ADD COLUMN save_until REAL;
