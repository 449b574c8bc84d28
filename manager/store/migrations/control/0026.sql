-- Version 26 of the control database: where its home is, to notice that it was moved or copied. NULL: an earlier version
-- has not written it down.
ALTER TABLE home ADD COLUMN path TEXT;  -- of the home, absolute
ALTER TABLE home ADD COLUMN lock TEXT;  -- which file manager.lock is: "<inode>:<time of birth in ns, or 0>"
