"""`railscope files`: dashboards, rules, runbooks, units, samples and scripts, listed and copied."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.command_line import run

from railscope.shipped_files import shipped_files

ROOT = Path(__file__).parent.parent
DIRECTORIES = ("alerts/rules", "alerts/runbooks", "dashboards/generated", "dashboards/provisioning",
               "deploy/ansible", "deploy/completions", "deploy/kubernetes", "deploy/nagios", "deploy/node-problem-detector",
               "deploy/prometheus",
               "deploy/slurm", "deploy/systemd")  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_every_file_of_the_checkout_is_listed():
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        *DIRECTORIES,
        ":(glob)deploy/*.toml",
        ":(glob)deploy/*.csv",
    ]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    listed = run("files").stdout.split()
    assert listed == sorted([*tracked, "deploy/alertmanager.yml"])
    assert len(listed) > 80


def test_files_are_copied_once(tmp_path: Path):
    target = tmp_path / "new/files"
    first, second = run("files", "--to", str(target)), run("files", "--to", str(target))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == run("files").stdout
    assert second.stdout == ""
    assert contents(target) == {name: path.read_bytes() for name, path in shipped_files().items()}
    assert (target / "deploy/slurm/prolog.sh").stat().st_mode & 0o111
    assert not (target / "deploy/agent.toml").stat().st_mode & 0o111


def test_a_file_that_differs_stops_the_copy_before_any_change(tmp_path: Path):
    changed = tmp_path / "deploy/tokens.toml"
    changed.parent.mkdir()
    changed.write_text("mine\n")
    outcome = run("files", "--to", str(tmp_path))
    assert outcome.exit_code == 1
    assert outcome.stderr == (
        f"Error: {tmp_path}: files that differ: 1, such as deploy/tokens.toml; fix: another directory, or --force\n"
    )
    assert contents(tmp_path) == {"deploy/tokens.toml": b"mine\n"}
    forced = run("files", "--to", str(tmp_path), "--force")
    assert forced.stdout == run("files").stdout
    assert changed.read_bytes() == shipped_files()["deploy/tokens.toml"].read_bytes()


def test_a_file_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path):
    (tmp_path / "deploy").write_text("a file where a directory is expected\n")
    outcome = run("files", "--to", str(tmp_path))
    assert outcome.exit_code == 1
    (line,) = outcome.stderr.splitlines()
    assert f"{tmp_path}/deploy" in line
