"""Proctor: hyperparameter experiments on the GPUs you own."""
