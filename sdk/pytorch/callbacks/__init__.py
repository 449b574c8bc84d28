"""What is called while a run continues: the user's callbacks, and the trainer's own.

Entry: `base.Callback`. Reading order: base, ema (averaged weights), log_file, tensorboard, progress.
"""
