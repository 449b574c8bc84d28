"""The machines of experiments: claimed, connected, held, released.

Entry: `provider`. Reading order: provider (which experiment claims which machine), machine (one machine and its
reconnects), keeper_session (one connection from login to its end), records, checks (`doctor`, `clean`).
"""
