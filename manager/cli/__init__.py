"""The command line. It talks to the manager through `proctor.sdk.client` only.

Entry: `main`. Reading order: main, lazy (imports a command when it is called), commands, session, exits (exit codes);
then output, columns, scheduler_columns, screen (colors), identifiers, watching, live (screens that stay), logs,
config_file, draft (what `config init` writes), machines, archive, checks (what `doctor` looks at).
"""
