"""What makes two runs equal bit for bit.

Entry: `seeding.seed_rngs`. Reading order: seeding (random streams), kernels (deterministic switches, precision),
fingerprint (what else bits depend on).
"""
