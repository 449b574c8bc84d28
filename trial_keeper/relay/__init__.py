"""Connections between keeper and manager over one pipe, where SSH forwarding is forbidden (docs/decisions/0010).

Entry: `node`, the end that runs on the node. Reading order: frames (the wire format), channels (flow control), node.
"""
