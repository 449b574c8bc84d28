"""The command line. It talks to the manager through `proctor.sdk.client` only."""
