"""`make release` in a clone of this repository: what it rejects, and what it makes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.packages import ROOT, require

import railscope

VERSION = f"{int(railscope.__version__.partition('.')[0]) + 1}.0.0"


class Clone:
    """Clone of this repository, and the directory of its releases."""

    def __init__(self, directory: Path) -> None:
        self.path, self.dist = directory / "clone", directory / "dist"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.path)], check=True)
        if (helm := ROOT / ".helm").exists():
            (self.path / ".helm").symlink_to(helm)
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@railscope.example")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        self.git("commit", "--quiet", "--all", "--message", "tests: change")

    def release(self, version: str = VERSION, *options: str) -> subprocess.CompletedProcess[str]:
        script = str(self.path / "deploy/packages/release.py")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        return subprocess.run(
            [sys.executable, script, version, "--to", str(self.dist), *options],
            env=kept,
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
        )

    def state(self) -> tuple[str, str, str, bool]:
        """Return what a release changes: branches, tags, and files in DIRECTORY; and working trees."""
        refs = self.git("for-each-ref", "--format=%(refname) %(objectname)")
        return (
            refs,
            self.git("status", "--porcelain"),
            self.git("worktree", "list"),
            self.dist.exists(),
        )


@pytest.fixture(name="clone")
def _clone(tmp_path: Path) -> Clone:
    """A clone with a change that is not released, which the commit after a release does not have."""
    clone = Clone(tmp_path)
    text = (clone.path / "CHANGELOG.md").read_text()
    change = "## [Unreleased]\n\n### Fixed\n\n- A defect.\n"
    clone.commit("CHANGELOG.md", text.replace("## [Unreleased]\n", change, 1))
    return clone


def changelog(clone: Clone) -> str:
    return (clone.path / "CHANGELOG.md").read_text()


def make_dirty(clone: Clone) -> None:
    (clone.path / "new.txt").write_text("new\n")


def change_readme(clone: Clone) -> None:
    (clone.path / "README.md").write_text("changed\n")


def make_target(clone: Clone) -> None:
    """The home of a person, with a build below it."""
    clone.dist.mkdir()
    (clone.dist / "SHA256SUMS").write_text("0  railscope.whl\n")
    (clone.dist / "railscope.whl").touch()
    (clone.dist / "thesis.tex").touch()


def make_tag(clone: Clone) -> None:
    clone.git("tag", f"v{VERSION}")


def make_empty_section(clone: Clone) -> None:
    before, _, after = changelog(clone).partition("## [Unreleased]\n")
    clone.commit(
        "CHANGELOG.md", f"{before}## [Unreleased]\n\n### Added\n\n## [{after.partition('## [')[2]}"
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("prepare", "version", "problem"),
    [
        (
            make_dirty,
            VERSION,
            "uncommitted changes: 1 files, such as new.txt; fix: commit or remove them",
        ),
        (change_readme, VERSION, "uncommitted changes: 1 files, such as README.md; fix:"),
        (make_target, VERSION, "DIRECTORY has files of no build, such as thesis.tex: expected"),
        (make_tag, VERSION, f"tag v{VERSION} exists: expected a new version"),
        (make_empty_section, VERSION, "section Unreleased of CHANGELOG.md is empty"),
        (
            None,
            railscope.__version__,
            f"invalid version '{railscope.__version__}': expected one after",
        ),
        (None, "v99.0.0", "invalid version 'v99.0.0': expected one after"),
        (None, "99", "invalid version '99': expected one after"),
    ],
)
def test_what_cannot_be_released_changes_nothing(clone: Clone, prepare, version: str, problem: str):
    if prepare:
        prepare(clone)
    before = clone.state()
    outcome = clone.release(version)
    assert outcome.returncode == 1
    expected = problem.replace("DIRECTORY", str(clone.dist))
    assert outcome.stderr.startswith(f"Error: {expected}")
    assert clone.state() == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dist", "dist/thesis.tex"])
def test_a_build_replaces_no_files_but_those_of_an_earlier_build(clone: Clone, name: str):
    make_target(clone)
    before = sorted(clone.dist.parent.iterdir()), sorted(clone.dist.iterdir())
    script = str(clone.path / "deploy/packages/build.py")
    outcome = subprocess.run(
        [sys.executable, script, "--to", str(clone.dist.parent / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 1
    assert "expected a new or empty directory, or an earlier build" in outcome.stderr
    assert (sorted(clone.dist.parent.iterdir()), sorted(clone.dist.iterdir())) == before


class BuiltRelease:
    """A release that was built, with the directory of an earlier build as its target."""

    def __init__(self, clone: Clone, directory: Path) -> None:
        self.clone, self.built = clone, directory / "built"
        make_target(clone)
        (clone.dist / "thesis.tex").unlink()
        self.built.mkdir()
        (self.built / "new.whl").touch()
        self.released = self._commit("HEAD")
        self.recorded = self._commit(self.released)
        self.before = self.state()

    def _commit(self, parent: str) -> str:
        return self.clone.git("commit-tree", "HEAD^{tree}", "-p", parent, "-m", "release: test")

    def publish(self) -> subprocess.CompletedProcess[str]:
        script = (
            "import sys; from pathlib import Path; import release\n"
            "release.check_target(Path(sys.argv[2]))\n"
            "release.publish(Path(sys.argv[1]), Path(sys.argv[2]), '9.0.0', *sys.argv[3:])"
        )
        places = (str(self.built), str(self.clone.dist))
        return subprocess.run(
            [sys.executable, "-c", script, *places, self.released, self.recorded],
            cwd=self.clone.path / "deploy/packages",
            capture_output=True,
            text=True,
            check=False,
        )

    def state(self) -> tuple[str, list[str], list[str]]:
        """Return branches and tags, files of the target, and the directories beside it."""
        refs = self.clone.git("for-each-ref", "--format=%(refname) %(objectname)")
        beside = sorted(path.name for path in self.clone.dist.parent.iterdir())
        return refs, sorted(path.name for path in self.clone.dist.iterdir()), beside


@pytest.fixture(name="built")
def _built(clone: Clone, tmp_path: Path) -> BuiltRelease:
    return BuiltRelease(clone, tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_release_is_built_tested_dated_tagged_and_recorded(clone: Clone):
    for program in ("rpm", "lintian", "rpmlint", "mmdebstrap"):
        require(program, program)
    before = clone.state()
    unreleased = changelog(clone).partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    rehearsed = clone.release(VERSION, "--dry-run")
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr
    assert f"would be released as v{VERSION}" in rehearsed.stdout
    assert clone.state() == before

    outcome = clone.release()
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    today = datetime.now(UTC).date()
    assert f"## [Unreleased]\n\n## [{VERSION}] - {today}\n{unreleased}\n## [" in changelog(clone)
    release = tomllib.loads((clone.path / "RELEASES.toml").read_text())["release"][-1]
    tagged = clone.git("rev-parse", f"v{VERSION}^{{commit}}")
    assert release == {"version": VERSION, "date": today, "commit": tagged}
    assert f'"{VERSION}"' in clone.git("show", f"v{VERSION}:railscope/__init__.py")
    assert clone.git("rev-list", "--count", f"v{VERSION}..HEAD") == "1"
    sums = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=clone.dist, check=False
    )
    assert sums.returncode == 0
    assert (clone.dist / f"railscope-agent_{VERSION}-1_all.deb").is_file()
    project = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    subprocess.run(
        [*project, "tests/test_releases.py", "tests/test_project_files.py"],
        cwd=clone.path,
        env=os.environ | {"PYTHONPATH": str(clone.path)},
        check=True,
    )


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_nothing_is_released_if_a_test_of_the_packages_fails(clone: Clone):
    name = "tests/test_project_files.py"
    clone.commit(
        name, (clone.path / name).read_text() + "\n\ndef test_that_fails():\n    assert not ROOT\n"
    )
    before = clone.state()
    outcome = clone.release()
    assert outcome.returncode == 1
    assert outcome.stderr.endswith("Error: the tests of the packages fail: nothing was released\n")
    assert clone.state() == before
