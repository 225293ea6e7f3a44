"""`python deploy/packages/release.py VERSION --to DIRECTORY`: make a release of the last commit.

In a working tree of its own: set the version, date the changelog, commit, build everything twice, compare, and run
the tests of the packages on what was built. Only then are branch, tag and DIRECTORY changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
from build import ROOT, check_target, import_path, replaced, run
from packaging.version import Version

TESTS = ("tests/test_releases.py", "tests/test_project_files.py", "tests/packages")
UNRELEASED = "## [Unreleased]\n"
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_MANIFEST_VERSION = re.compile(
    r'(?<=app.kubernetes.io/version: ")[^"]*(?=")|(?<=image: railscope:)\S+'
)
_VERSION_LINE = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


def git(*arguments: str | Path, tree: Path = ROOT) -> str:
    """Run git; return its output."""
    return run("git", "-C", tree, *arguments).rstrip("\n")


def check_release(version: str) -> None:
    """Raise ClickException if this version of the last commit cannot be released."""
    if changed := git("status", "--porcelain").splitlines():
        message = f"uncommitted changes: {len(changed)} files, such as {changed[0][3:]}; fix: commit or remove them"
        raise click.ClickException(message)
    present = _VERSION_LINE.findall((ROOT / "railscope/__init__.py").read_text())[0]
    if not _VERSION.fullmatch(version) or Version(version) <= Version(present):
        message = (
            f"invalid version {version!r}: expected one after {present}, such as 1.2.0 or 1.2.0rc1"
        )
        raise click.ClickException(message)
    if git("tag", "--list", f"v{version}"):
        message = f"tag v{version} exists: expected a new version"
        raise click.ClickException(message)
    changes = (ROOT / "CHANGELOG.md").read_text().partition(UNRELEASED)[2].partition("\n## [")[0]
    if not re.search(r"^- ", changes, re.MULTILINE):
        message = "section Unreleased of CHANGELOG.md is empty: expected a line per change"
        raise click.ClickException(message)


@contextmanager
def working_tree() -> Iterator[Path]:
    """Yield a working tree of the last commit, removed afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        git("worktree", "add", "--quiet", "--detach", tree, "HEAD")
        if (helm := ROOT / ".helm").exists():  # git ignores it, so the working tree lacks it
            (tree / ".helm").symlink_to(helm)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", tree)


def chart_version(version: str) -> str:
    """Return a version of Python as one of Helm: 1.0.0rc1 as 1.0.0-rc.1."""
    return re.sub(r"(a|b|rc)(\d+)$", r"-\1.\2", version)


def commit_version(tree: Path, version: str, date: str) -> str:
    """Commit version and date; return the commit."""
    sections = f"{UNRELEASED}\n## [{version}] - {date}\n"
    for name, pattern, text in (
        ("railscope/__init__.py", _VERSION_LINE.pattern, f'__version__ = "{version}"'),
        ("CHANGELOG.md", rf"^{re.escape(UNRELEASED)}", sections),
        (
            "deploy/helm/railscope/Chart.yaml",
            r"^version: .*$",
            f"version: {chart_version(version)}",
        ),
        ("deploy/helm/railscope/Chart.yaml", r"^appVersion: .*$", f'appVersion: "{version}"'),
        ("CITATION.cff", r"^version: .*$", f"version: {version}"),
        ("CITATION.cff", r"^date-released: .*$", f"date-released: {date}"),
    ):
        path = tree / name
        path.write_text(re.sub(pattern, text, path.read_text(), count=1, flags=re.MULTILINE))
    for name in ("agent", "collector"):
        path = tree / f"deploy/kubernetes/{name}.yaml"
        path.write_text(_MANIFEST_VERSION.sub(version, path.read_text()))
    git("commit", "--quiet", "--all", "--message", f"release: version {version}", tree=tree)
    return git("rev-parse", "HEAD", tree=tree)


def commit_record(tree: Path, version: str, date: str, commit: str) -> str:
    """Commit the entry of a release in RELEASES.toml; return the commit."""
    entry = f'\n[[release]]\nversion = "{version}"\ndate = {date}\ncommit = "{commit}"\n'
    path = tree / "RELEASES.toml"
    path.write_text(path.read_text() + entry)
    git("commit", "--quiet", "--all", "--message", f"release: record version {version}", tree=tree)
    return git("rev-parse", "HEAD", tree=tree)


def build(tree: Path, target: Path) -> dict[str, str]:
    """Build everything; return the checksums by file."""
    click.echo(f"building in {target}")
    run(sys.executable, "-B", tree / "deploy/packages/build.py", "--to", target, cwd=tree)
    lines = (target / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def check_equal(first: dict[str, str], second: dict[str, str]) -> None:
    """Raise ClickException if a file of two builds differs."""
    if differing := sorted({name for name, _ in first.items() ^ second.items()}):
        message = f"files that differ between two builds: {', '.join(differing)}"
        raise click.ClickException(message)


def run_tests(tree: Path, built: Path, epoch: str) -> None:
    """Run the tests of the packages on what was built. Raises ClickException."""
    # All, also those of the collector, which `make test` leaves to `make thorough`.
    selected = ["-m", "", *TESTS]
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *selected,
    ]
    environment = {
        "PYTHONPATH": import_path(tree),
        "RAILSCOPE_PACKAGES": str(built),
        "SOURCE_DATE_EPOCH": epoch,
    }
    done = subprocess.run(command, cwd=tree, env=os.environ | environment, check=False)  # noqa: S603 - as above
    if done.returncode:
        message = "the tests of the packages fail: nothing was released"
        raise click.ClickException(message)


def publish(built: Path, target: Path, version: str, released: str, recorded: str) -> None:
    """Copy the files, change branch and tag, then replace the target: without the files there is no release.

    The former files remain if the branch has changed since. Raises ClickException.
    """
    if (head := git("rev-parse", "HEAD")) != git("rev-parse", f"{released}^"):
        message = f"HEAD is {head}: expected the commit that was built; nothing was released; fix: run the command again"
        raise click.ClickException(message)
    with replaced(target) as new:
        shutil.copytree(built, new, dirs_exist_ok=True)
        git("merge", "--quiet", "--ff-only", recorded)
        git("tag", "--annotate", f"v{version}", released, "--message", f"Railscope {version}")


@click.command()
@click.argument("version")
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the built files: a new or empty one, or that of an earlier build, which is replaced.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Build and test, but change neither the repository nor DIRECTORY.",
)
def main(*, version: str, target: Path, dry_run: bool) -> None:
    """Build, test, commit and tag VERSION from the last commit."""
    check_release(version)
    check_target(target)
    date = datetime.now(UTC).date().isoformat()
    with working_tree() as tree:
        released = commit_version(tree, version, date)
        built = tree.parent / "built"
        first = build(tree, built)
        run_tests(tree, built, git("log", "-1", "--format=%ct", tree=tree))
        check_equal(first, build(tree, tree.parent / "again"))
        recorded = commit_record(tree, version, date, released)
        if not dry_run:
            publish(built, target, version, released, recorded)
    for name, digest in first.items():
        click.echo(f"{digest}  {name}")
    done = (
        f"would be released as v{version}"
        if dry_run
        else f"released as v{version}, files in {target}; publish it with git push --follow-tags"
    )
    click.echo(done)


if __name__ == "__main__":
    main()
