"""Which files of a trial are saved, and where."""

from pathlib import Path

import pytest
from fakes.served_manager import ServedManager

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


def test_a_file_of_the_user_that_is_called_like_the_half_of_another_stays(
    served: ServedManager, invoke, tmp_path: Path
) -> None:
    served.add_experiment(trials=[{"id": "a"}])
    output = Path(served.experiment().directory, "trials/0-a/jobs/1/output")
    output.mkdir(parents=True)
    (output / "model").write_text("trained")
    target = tmp_path / "output"
    target.mkdir()
    (target / "model.part").write_text("the user's")
    result = invoke("trial", "download", "a", "-d", str(tmp_path), "--path", "output/model")
    assert result.exit_code == 0, result.stderr
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "model": "trained",
        "model.part": "the user's",
    }
