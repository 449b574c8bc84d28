"""The manager's nodes, whoever uses them.

Entry: `records`, what the store remembers of each. Reading order: records, history (who held which GPU when, load and
memory over time), connections (those that are reached over a network).
"""
