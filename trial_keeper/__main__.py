"""`python -m proctor.trial_keeper COMMAND`, and `python3 keeper-<hash>.pyz COMMAND` on a node.

`serve --directory DIR` runs the keeper of DIR (`start.py` starts it detached); `relay` is described in `relay.py`,
`pod` in `pod.py`, all other commands in `commands/`.
"""

import sys


def main() -> int:
    """Carry out the command that the arguments name; returns the exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "serve":
        return _serve(sys.argv[2:])
    if command == "pod":
        from proctor.trial_keeper.pod import main as run_pod

        return run_pod(sys.argv[2:])
    if command == "relay":
        from proctor.trial_keeper.relay import main as relay

        return relay()
    from proctor.trial_keeper.commands.main import main as carry_out

    return carry_out(command)


def _serve(words: list[str]) -> int:
    import argparse
    import os
    from pathlib import Path

    from proctor.sdk.process_limits import restore_open_files
    from proctor.trial_keeper.daemon import serve

    parser = argparse.ArgumentParser(prog="python -m proctor.trial_keeper serve", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="the keeper's directory; holds its config.json")
    parser.add_argument("--detach", type=int, metavar="FD", help="run in the background; close FD when it has started")
    parser.add_argument("--open-files", type=int, metavar="N", help="the soft limit on open files of its trials")
    arguments = parser.parse_args(words)
    if arguments.open_files is not None:
        restore_open_files(arguments.open_files)
    if arguments.detach is not None and os.fork():
        os._exit(0)  # at once: what Python does at its end would cost the copying of what it shares with the keeper
    return serve(arguments.directory.absolute(), ready=arguments.detach)


if __name__ == "__main__":
    sys.exit(main())
