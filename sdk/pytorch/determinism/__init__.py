"""What makes two runs equal bit for bit.

Reading order: seeding (random streams), kernels (deterministic switches, precision), fingerprint (what else bits depend
on).
"""
