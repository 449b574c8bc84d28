"""`python -m proctor.trial_keeper --directory DIR`: run the keeper of DIR (see `start.py` for starting it detached)."""

import argparse
import os
import sys
from pathlib import Path

from proctor.trial_keeper.daemon import serve


def main() -> int:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m proctor.trial_keeper", description=__doc__)
    parser.add_argument("--directory", required=True, type=Path, help="the keeper's directory; holds its config.json")
    parser.add_argument("--detach", type=int, metavar="FD", help="go to the background; close FD when it is up")
    arguments = parser.parse_args()
    if arguments.detach is not None and os.fork():
        return 0
    return serve(arguments.directory.absolute(), ready=arguments.detach)


if __name__ == "__main__":
    sys.exit(main())
