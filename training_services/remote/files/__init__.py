"""Files of experiments on remote machines: code and checkpoints on the way there, results on the way back.

Entry: `collection.Collector`. Reading order: paths, transfer (each copy once), collection. What a job needs before its
launch: `remote/staging.py`.
"""
