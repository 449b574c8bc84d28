"""Files of experiments on remote machines: code and checkpoints on the way there, results on the way back.

Reading order: paths, transfer (each copy once), staging (what must be there before a launch), collection.
"""
