"""Data that a stopped run can enter again at any batch.

Entry: `module.DataModule`. Reading order: module, loaders, streams, samplers.
"""
