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


def renamed_events() -> list[tuple[str, list[str], list[str]]]:
    """Return the rows of the table of log events: program, earlier names, present names."""
    page = (ROOT / "docs/compatibility.md").read_text()
    rows = re.findall(r"^\| (agent|collector) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    return [
        (program, *(re.findall(r"`(\w+)`", cell) for cell in cells)) for program, *cells in rows
    ]


def logged_names(program: str) -> set[str]:
    """Return all string constants of a program that could be names of log events."""
    paths = [path for part in (program, "railscope") for path in (ROOT / part).rglob("*.py")]
    constants = {name for path in paths for name in re.findall(r'"([a-z_]+)"', path.read_text())}
    of_files = {f"{name}_{verb}_failed" for name in constants for verb in ("read", "write")}
    return constants | of_files


def test_the_upgrade_notes_name_log_events_by_their_present_names():
    rows = renamed_events()
    assert rows
    for program, before, now in rows:
        logged = logged_names(program)
        assert set(now) <= logged
        renamed = {name for name in before if not name.endswith("_write_failed")}
        assert renamed & logged <= {"audit_log_disputed"}, (
            "agents of 0.2.0 send events of that name"
        )
