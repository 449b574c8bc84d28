-- Version 2 of the metrics databases: how a checkpoint's record stands to the metric that was reported with it.
ALTER TABLE checkpoints ADD COLUMN with_metric INTEGER;  -- 1: its metric is before it, 0: it has none, NULL: not known
