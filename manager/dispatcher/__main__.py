"""`python -m proctor.manager.dispatcher --fd N`: host an experiment's algorithms on the inherited socket N."""

import sys

from proctor.manager.dispatcher.host import main

USAGE = "usage: python -m proctor.manager.dispatcher --fd N   (started by the manager)"

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--fd" or not sys.argv[2].isdigit():
        sys.exit(USAGE)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(int(sys.argv[2]))
