"""The manager's end of a dispatcher process: start, replay, restart.

Entry: `client.DispatcherClient`. Reading order: client, process, liveness (busy, suspended or stuck), in_process.
"""
