"""The paths of a launch, as this node sees them."""

import os
from dataclasses import replace

from proctor.trial_keeper.protocol import Launch


def absolute_launch(launch: Launch, directory: str) -> Launch:
    """The launch with every path absolute; relative ones are below the keeper's `directory`. An empty search path
    stays empty."""

    def below(path: str) -> str:
        return path if os.path.isabs(path) else os.path.normpath(os.path.join(directory, path))

    def below_or_none(path: str | None) -> str | None:
        return None if path is None else below(path)

    return replace(
        launch,
        directory=below(launch.directory),
        code_directory=below(launch.code_directory),
        environment_file=below_or_none(launch.environment_file),
        resume_checkpoint=below_or_none(launch.resume_checkpoint),
        search_path=below(launch.search_path) if launch.search_path else "",
    )
