"""The nodes of this manager: their devices, reservations and states.

Entry: `pool.NodePool`. `quarantine` is the rule for nodes on which trials fail that succeed elsewhere.
"""
