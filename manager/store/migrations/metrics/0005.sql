-- Whose part of the curve a job continues. A job from the start may lie between the two.
ALTER TABLE journals ADD COLUMN resumed_from INTEGER;  -- the number of that job; NULL: of none, or of the one before
