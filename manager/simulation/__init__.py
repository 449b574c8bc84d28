"""A whole manager under virtual time.

Entry: `simulation`. `virtual_time` is the event loop whose clock jumps.
"""
