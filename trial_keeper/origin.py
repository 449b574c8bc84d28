"""Where this code was loaded from: a folder, or the one file that was brought to a node."""

import os

import proctor

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(proctor.__file__)))
"""What stands on `sys.path` for `import proctor`: a folder or a zip archive."""

ARCHIVE = os.path.basename(PACKAGE_ROOT) if os.path.isfile(PACKAGE_ROOT) else ""
"""The archive's name (it holds a hash of its content); empty when the code was loaded from a folder."""

SPAWNER_CODE = "import sys; sys.path.insert(0, sys.argv.pop()); from proctor.trial_keeper.spawner import main; main()"
"""What Python is told to run as a spawner: by this a spawner and the reapers that were forked from it are known."""

ENV_KEEPER = "PROCTOR_KEEPER_DIRECTORY"
"""In the environment of the processes that belong to a keeper started by `commands.py`: the keeper's directory."""
