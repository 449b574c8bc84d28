"""Cutting a release, in a repository of the few files that it changes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.documentation import ROOT

import proctor

FILES = ("pyproject.toml", "src/proctor/__init__.py", "deploy/kubernetes/base/kustomization.yaml", "deploy/release.py")
CHANGELOG = """# Changelog

The format is kept.

## [Unreleased]

### Added

* Something new.

## [0.0.1] - 2025-01-01

* The beginning.
"""
IDENTITY = {f"GIT_{who}_{what}": f"{who}@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ENVIRONMENT = {**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


class Repository:
    """A checkout with one commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
        (folder / "CHANGELOG.md").write_text(CHANGELOG)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    def git(self, *words: str) -> str:
        command = ["git", *words]
        return subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, check=True, capture_output=True, text=True
        ).stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Something")

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def release(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(self.folder / "deploy" / "release.py"), *words]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    def refuse(self, version: str) -> str:
        """Why a version is not released."""
        done = self.release(version)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_one_command_sets_the_version_cuts_the_changelog_commits_and_tags(repository: Repository) -> None:
    done = repository.release("97.1.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert '\nversion = "97.1.0"\n' in repository.read("pyproject.toml")
    assert '\n__version__ = "97.1.0"\n' in repository.read("src/proctor/__init__.py")
    assert "newTag: 97.1.0\n" in repository.read("deploy/kubernetes/base/kustomization.yaml")
    today = r"\d{4}-\d\d-\d\d"
    heading = rf"## \[Unreleased\]\n\n## \[97\.1\.0\] - {today}\n\n### Added\n\n\* Something new\.\n\n## \[0\.0\.1\]"
    assert re.search(heading, repository.read("CHANGELOG.md"))
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("tag", "--points-at", "HEAD").split() == ["v97.1.0"]
    assert repository.git("log", "-1", "--format=%s") == "Release 97.1.0\n"
    assert len(repository.git("diff", "--name-only", "HEAD~1").split()) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (proctor.__version__, f"expected a version after {proctor.__version__}"),
        ("0.0.1", "expected a version after"),
        ("next", "expected a version such as 0.2.0"),
        ("v97.0.0", "write the version 'v97.0.0' as 97.0.0"),
        ("97.0.0+lab.1", "a release has no local version; write '97.0.0+lab.1' as 97.0.0"),
        ("97.0.0-rc1", "write the version '97.0.0-rc1' as 97.0.0rc1"),
    ],
)
def test_a_version_that_is_none_or_not_the_next_one_is_refused(
    repository: Repository, version: str, problem: str
) -> None:
    assert problem in repository.refuse(version)
    assert repository.git("status", "--porcelain") == repository.git("tag") == ""


def test_uncommitted_changes_are_refused_and_kept(repository: Repository) -> None:
    (repository.folder / "draft.txt").touch()
    changes = "the working tree has changes; commit or stash them first:\n?? draft.txt"
    assert changes in repository.refuse("97.1.0")
    assert repository.git("tag") == ""


def test_a_release_without_news_is_refused(repository: Repository) -> None:
    repository.release("97.1.0")
    assert "CHANGELOG.md has nothing under '## [Unreleased]'" in repository.refuse("97.2.0")


def test_a_tag_that_is_there_is_not_moved(repository: Repository) -> None:
    repository.git("tag", "v97.1.0")
    assert repository.refuse("97.1.0") == "release: the tag v97.1.0 is there already\n"


@pytest.mark.parametrize("setting", ["commit.gpgSign", "tag.gpgSign"])
def test_a_commit_or_tag_that_cannot_be_made_changes_nothing(repository: Repository, setting: str) -> None:
    before = repository.git("rev-parse", "HEAD")
    repository.git("config", setting, "true")
    repository.git("config", "gpg.program", "/bin/false")
    repository.refuse("97.1.0")
    assert repository.git("rev-parse", "HEAD") == before
    assert repository.git("status", "--porcelain") == repository.git("tag") == ""


def test_places_that_do_not_agree_on_the_version_are_named(repository: Repository) -> None:
    path = repository.folder / "src/proctor/__init__.py"
    path.write_text(path.read_text().replace(f'"{proctor.__version__}"', '"0.0.9"'))
    repository.commit()
    why = repository.refuse("97.1.0")
    assert "the version differs" in why
    assert "0.0.9 in src/proctor/__init__.py" in why
