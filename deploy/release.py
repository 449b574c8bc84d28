"""Cut a release: `make release VERSION=0.2.0`.

Sets the version, turns the changelog's Unreleased section into one of that version and day, commits, and tags. Nothing
is pushed. docs/releasing.md has what comes before and after.
"""

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
CHANGELOG = "CHANGELOG.md"
UNRELEASED = "## [Unreleased]\n"
PLACES = {
    "pyproject.toml": 'version = "{}"',
    "src/proctor/__init__.py": '__version__ = "{}"',
    "deploy/kubernetes/base/kustomization.yaml": "newTag: {}",
}
"""Where the version stands, once in each file, in a line of its own."""


class Refused(Exception):
    """The release cannot be cut; nothing was changed."""


def main(words: list[str]) -> int:
    """Cut the release that the arguments name; the exit code."""
    if len(words) != 1:
        print("usage: make release VERSION=0.2.0", file=sys.stderr)
        return 2
    try:
        version = cut(words[0])
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"Committed and tagged v{version}. Next: docs/releasing.md, from `git push` on.")
    return 0


def cut(text: str) -> Version:
    """Check everything, then write, commit and tag. Raises Refused."""
    if changed := git("status", "--porcelain"):
        raise Refused(f"the working tree has changes; commit or stash them first:\n{changed.rstrip()}")
    contents = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*PLACES, CHANGELOG)}
    current = find_version(contents)
    version = read_version(text, current)
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already")
    contents[CHANGELOG] = close_section(contents[CHANGELOG], version)
    for name, line in PLACES.items():
        contents[name] = contents[name].replace(line.format(current), line.format(version))
    before = git("rev-parse", "HEAD").strip()
    for name, content in contents.items():
        (ROOT / name).write_text(content, encoding="utf-8")
    try:
        git("commit", "--quiet", "--all", "--message", f"Release {version}")
        git("tag", "--annotate", f"v{version}", "--message", f"Proctor {version}")
    except Refused:
        git("reset", "--quiet", "--hard", before)
        raise
    return version


def find_version(contents: dict[str, str]) -> Version:
    """The present version, which all places must agree on. Raises Refused."""
    found = {}
    for name, line in PLACES.items():
        before, after = (re.escape(part) for part in line.split("{}"))
        matches = re.findall(rf"^\s*{before}([^\"\n]+){after}$", contents[name], re.MULTILINE)
        if len(matches) != 1:
            raise Refused(f"{name}: expected one line `{line.format('…')}`, found {len(matches)}")
        found[name] = matches[0]
    if len(set(found.values())) > 1:
        raise Refused(f"the version differs: {', '.join(f'{value} in {name}' for name, value in found.items())}")
    return Version(found.popitem()[1])


def read_version(text: str, current: Version) -> Version:
    """The version to come. Raises Refused."""
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise Refused(f"expected a version such as 0.2.0 or 0.2.0rc1, found {text!r}") from error
    if version.local:
        raise Refused(f"a release has no local version; write {text!r} as {version.public}")
    if str(version) != text:
        raise Refused(f"write the version {text!r} as {version}")
    if version <= current:
        raise Refused(f"expected a version after {current}, found {version}")
    return version


def close_section(changelog: str, version: Version) -> str:
    """The changelog with an empty Unreleased section above what was in it. Raises Refused."""
    head, heading, rest = changelog.partition(UNRELEASED)
    section = rest.partition("\n## ")[0]
    if not heading or not re.search(r"^\* ", section, re.MULTILINE):
        raise Refused(f"{CHANGELOG} has nothing under {UNRELEASED.strip()!r}")
    return f"{head}{UNRELEASED}\n## [{version}] - {datetime.now(UTC):%Y-%m-%d}\n{rest}"


def git(*words: str) -> str:
    """Run git in the repository; what it printed. Raises Refused with what it complained of."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {words[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
