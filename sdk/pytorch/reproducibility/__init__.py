"""What makes two runs equal bit for bit.

Entry: `seeding.seed_rngs`. Reading order: seeding (random streams), fingerprint (what else bits depend on, such as the
deterministic switches).
"""
