-- Version 18 of the control database: who has caused an event. NULL: it is older than this.
ALTER TABLE events ADD COLUMN actor TEXT;  -- a part of the manager, or token@way; see manager/actors.py
