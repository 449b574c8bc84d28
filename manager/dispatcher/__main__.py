"""`python -m proctor.manager.dispatcher --fd N [--umask MODE] [--open-files M]`: host an experiment's algorithms on the
inherited socket N, with the umask and the soft limit on open files of the user instead of the manager's."""

import argparse
import os
import sys

from proctor.manager.dispatcher.host.host import main
from proctor.sdk.process_limits import restore_open_files

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m proctor.manager.dispatcher", description="Started by the manager.", allow_abbrev=False
    )
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--umask", type=lambda text: int(text, 8), help="octal; the process's own if not given")
    parser.add_argument("--open-files", type=int, help="the soft limit; the process's own if not given")
    options = parser.parse_args()
    if options.umask is not None:
        os.umask(options.umask)
    if options.open_files is not None:
        restore_open_files(options.open_files)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    channel = os.dup(options.fd)  # a low number: in a manager with many files it may be too high for the limit
    os.close(options.fd)
    main(channel)
