"""The PyTorch trainer: against a loop written by hand, and against other trainers in an environment of its own.

Entry: `trainer` and `peers`.
"""
