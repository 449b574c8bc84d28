"""The command line. It talks to the manager through `proctor.sdk.client` only.

Entry: `main`. Reading order: main, lazy, commands, session; then output, columns, identifiers, watching, logs, checks.
"""
