"""Files of experiments on remote machines: code and checkpoints on the way there, results on the way back.

Entry: `collection.CollectionQueues`, for what `proctor.training_services.files` collects. `transfer` makes each copy
once. What a job needs before its launch: `remote/staging.py`.
"""
