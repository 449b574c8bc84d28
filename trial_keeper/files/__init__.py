"""Files of jobs that the manager asks for.

Entry: `server`, which answers a few requests at a time. `access` decides which paths may be read, `archives`
unpacks what the manager has sent.
"""
