"""The REST API: what the CLI, the SDK, the page and the keepers talk to.

Entry: `application`. Reading order: application, guard (host, token, headers), groups (which routes answer what),
description (a group in FastAPI, and the document), context (what routes work with, densities that are kept),
dependencies, routes, requests, models, resources, columnar (tables as they travel), table_files (tables as files),
charts (curves and their density), json_types (NaN and infinities), text (parts of files), stream (server-sent events),
errors, keepers (their routes on the Unix socket); export_openapi writes the API's documents.
"""
