-- Version 3 of the metrics databases: what a checkpoint consists of, and whether its files are still there.
ALTER TABLE checkpoints ADD COLUMN bytes INTEGER;     -- of all its files; NULL: its record does not say so
ALTER TABLE checkpoints ADD COLUMN manifest TEXT;     -- SHA-256 of its manifest; NULL: it has none (earlier SDK)
ALTER TABLE checkpoints ADD COLUMN deleted_at REAL;   -- when its files were deleted; NULL: they were not
