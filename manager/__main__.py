"""`python -m proctor.manager`: a manager in the foreground."""

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace

from proctor.manager.process.instance import EXIT_USAGE, StartError
from proctor.manager.settings import (
    Home,
    HomeClaim,
    ManagerSettings,
    SettingsError,
    read_dispatcher_settings,
    read_environment,
    read_heartbeat,
    read_keeper_listen,
    read_port,
    read_prefix,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until it is stopped; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options)
    except SettingsError as error:
        return _refuse(str(error), EXIT_USAGE)
    return run_in_foreground(settings)


def run_in_foreground(settings: ManagerSettings) -> int:
    """Run until it is stopped, and say on stderr what is wrong where it cannot start; the exit code."""
    gc.disable()  # nothing of what is imported goes again, and the search for garbage in it takes a tenth of the start
    from proctor.manager.app import run
    from proctor.sdk.process_limits import keep_files_private, raise_open_files

    gc.freeze()
    gc.enable()
    keep_files_private()
    raise_open_files()
    try:
        run(settings)
    except StartError as error:
        return _refuse(str(error), error.exit_code)
    return 0


def _refuse(sentence: str, exit_code: int) -> int:
    print(f"proctor manager: {sentence}", file=sys.stderr)
    return exit_code


CLAIMS = {
    HomeClaim.MOVED: "the home was moved here from another disk: take over its trials and what it has stored elsewhere",
    HomeClaim.COPY: "the home is a copy: make it a home of its own, which leaves all of that to the original",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m proctor.manager", description="Run a manager in the foreground.")
    parser.add_argument("--home", help="its folder (default: PROCTOR_HOME, else the platform's state folder)")
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", help="the port; auto: 8080 or the next free one (default); 0: any")
    parser.add_argument("--allow-remote", action="store_true", help="let --host be reachable from other machines")
    parser.add_argument("--allowed-host", action="append", default=[], help="another host name to accept requests for")
    parser.add_argument("--url-prefix", help="the path in front of all URLs behind a reverse proxy")
    parser.add_argument(
        "--keeper-listen", metavar="HOST:PORT", help="where keepers connect over TLS (default: nowhere)"
    )
    parser.add_argument(
        "--accept-database", action="store_true", help="start with the current (or an empty) control database"
    )
    claims = parser.add_mutually_exclusive_group()
    for claim, what in CLAIMS.items():
        claims.add_argument(f"--{claim}", dest="claim", action="store_const", const=claim, help=what)
    parser.add_argument("--log-format", choices=["text", "json"], help="of stderr (default: text)")
    parser.add_argument("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


def _settings(options: argparse.Namespace) -> ManagerSettings:
    web, log = read_environment()
    web = replace(
        web,
        host=options.host or web.host,
        port=web.port if options.port is None else read_port(options.port, "--port"),
        allow_remote=web.allow_remote or options.allow_remote,
        allowed_hosts=(*web.allowed_hosts, *options.allowed_host),
        url_prefix=web.url_prefix if options.url_prefix is None else read_prefix(options.url_prefix, "--url-prefix"),
    )
    log = replace(log, format=options.log_format or log.format, level=options.log_level or log.level)
    dispatchers = read_dispatcher_settings()
    return ManagerSettings(
        Home.find(options.home),
        web,
        log,
        dispatchers,
        heartbeat_seconds=read_heartbeat(),
        keeper_listen=read_keeper_listen(options.keeper_listen),
        accept_database=options.accept_database,
        claim=options.claim,
    )


if __name__ == "__main__":
    sys.exit(main())
