"""What watches a run and writes about it: log file, TensorBoard, progress bars.

Entry: `base.Observer`. Reading order: base, continuation (the line on standard error), log_file,
tensorboard, progress.
"""
