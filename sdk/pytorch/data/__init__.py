"""Data that a stopped run can enter again at any batch.

Reading order: module (`DataModule`), loaders, samplers (pure).
"""
