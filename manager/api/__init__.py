"""The REST API: what the CLI, the SDK, the page and the keepers talk to.

Entry: `application`. Reading order: application, guard (host, token, headers), dependencies, routes, models, resources,
stream (server-sent events), errors, keepers (their routes on the Unix socket).
"""
