"""`python -m proctor.manager.dispatcher --fd N [--umask MODE]`: host an experiment's algorithms on the inherited
socket N, with the umask of the user instead of the manager's."""

import argparse
import os
import sys

from proctor.manager.dispatcher.host import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m proctor.manager.dispatcher", description="Started by the manager.", allow_abbrev=False
    )
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--umask", type=lambda text: int(text, 8), help="octal; the process's own if not given")
    options = parser.parse_args()
    if options.umask is not None:
        os.umask(options.umask)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(options.fd)
