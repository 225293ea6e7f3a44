"""Every release has a dated section of the changelog, and a commit that states its version."""

import datetime as dt
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import railscope

ROOT = Path(__file__).parents[1]
RELEASES = tomllib.loads((ROOT / "RELEASES.toml").read_text())["release"]
SECTION = re.compile(r"^## \[(?P<version>[0-9.]+)\](?: - (?P<date>[0-9-]+))?$", re.MULTILINE)


def sections() -> dict[str, str | None]:
    text = (ROOT / "CHANGELOG.md").read_text()
    return {found["version"]: found["date"] for found in SECTION.finditer(text)}


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_a_release_has_a_dated_section(release):
    assert isinstance(release["date"], dt.date)
    assert sections()[release["version"]] == release["date"].isoformat()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_the_commit_of_a_release_states_its_version(release):
    """A clone without its history has nothing to compare with; the form is checked there."""
    assert re.fullmatch("[0-9a-f]{40}", release["commit"])
    shown = git("show", f"{release['commit']}:railscope/__init__.py")
    is_shallow = git("rev-parse", "--is-shallow-repository").stdout.strip() != "false"
    assert is_shallow or f'__version__ = "{release["version"]}"' in shown.stdout


def test_the_version_is_released():
    assert railscope.__version__ in sections()
