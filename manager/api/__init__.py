"""The REST API: what the CLI, the SDK, the page and the keepers talk to."""
