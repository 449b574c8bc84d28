-- The newest state of each experiment's algorithms: what a restarted dispatcher begins with, instead of all inputs.
CREATE TABLE dispatcher_states (
    experiment_id TEXT PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    state TEXT NOT NULL
) STRICT;
