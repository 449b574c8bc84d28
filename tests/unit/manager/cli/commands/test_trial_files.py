"""Which files of a trial are saved, and where."""

import pytest

from proctor.manager.cli.commands.trial import choose

FILES = [{"path": path, "size_bytes": 1} for path in ("stdout", "output/a", "output/deep/b", "outputs")]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ([], ["stdout", "output/a", "output/deep/b", "outputs"]),
        (["stdout"], ["stdout"]),
        (["output"], ["output/a", "output/deep/b"]),
        (["output/deep/", "stdout"], ["stdout", "output/deep/b"]),
        (["none"], []),
    ],
)
def test_files_and_whole_folders_can_be_chosen(wanted: list[str], chosen: list[str]) -> None:
    assert choose(FILES, wanted) == chosen


def test_a_path_that_leads_elsewhere_is_never_followed() -> None:
    rows = [{"path": path, "size_bytes": 1} for path in ("/etc/passwd", "../../.bashrc", "a/../../b", "fine")]
    assert choose(rows, []) == ["fine"]
    assert choose(rows, ["/etc"]) == []
