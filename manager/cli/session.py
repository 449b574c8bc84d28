"""What every command has: the home, a client of the manager when it is needed, and a place for messages."""

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.output import echo
from proctor.manager.settings import Home, HomeClaim, read_prefix
from proctor.sdk.client.home import ENV_URL

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client


class CliSession:
    """One run of the command line. The client is opened when first asked for and closed at the end."""

    def __init__(self, *, home: str | None = None, url: str | None = None, debug: bool = False) -> None:
        self.home = Home.find(home)
        self.url = url or os.environ.get(ENV_URL)
        self.debug = debug
        self._client: Client | None = None

    @property
    def client(self) -> "Client":
        """The running manager. Raises ManagerUnreachable where none runs."""
        if self._client is None:
            from proctor.sdk.client.client import Client

            self._client = Client(self.url, home=self.home.path, agent="proctor-cli")
        return self._client

    def ensure_client(self, *, port: int | None = None, url_prefix: str | None = None) -> "Client":
        """The manager; the home's own one is started in the background if it does not run.

        Says so on stderr if one runs already, with another port or URL prefix than these.
        """
        if self._client is None and self.url is None:
            ensure_running(self.home, port=port, url_prefix=url_prefix)
        url = self.client.url
        if port and urlsplit(url).port != port:
            self.report(f"--port {port} has no effect: the manager, which serves all experiments, runs at {url}")
        if url_prefix is not None and not url.endswith(read_prefix(url_prefix, "--url-prefix")):
            self.report(f"--url-prefix has no effect: the manager, which serves all experiments, runs at {url}")
        return self.client

    def close(self) -> None:
        """Give the connection back."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @staticmethod
    def report(text: str) -> None:
        """A message for a person, on stderr."""
        echo(text, err=True)


with_session = click.make_pass_decorator(CliSession, ensure=True)
"""Gives a command's function the session as its first argument."""


def ensure_running(
    home: Home,
    *,
    port: int | None = None,
    url_prefix: str | None = None,
    keeper_listen: str | None = None,
    accept_database: bool = False,
    claim: HomeClaim | None = None,
) -> str:
    """Start the home's manager in the background if none runs; its URL. Raises CommandError with the reason."""
    from proctor.manager.process.daemon import ensure_manager
    from proctor.manager.process.instance import StartError

    try:
        return ensure_manager(
            home,
            port=port,
            url_prefix=url_prefix,
            keeper_listen=keeper_listen,
            accept_database=accept_database,
            claim=claim,
            report=CliSession.report,
        ).url
    except StartError as error:
        raise CommandError(f"the manager could not be started: {error}", ExitCode.UNREACHABLE) from error
