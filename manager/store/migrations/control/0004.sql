-- Version 4 of the control database: old events go. One row: ids up to this one may be gone.
CREATE TABLE pruned_events (up_to INTEGER NOT NULL) STRICT;
INSERT INTO pruned_events (up_to) VALUES (0);
