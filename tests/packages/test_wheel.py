"""Wheel and source distribution: built twice, installed without extras into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLLECTOR_COMMANDS = ("bill", "collector", "simulate")


def build(source: Path, target: Path, *kinds: str) -> None:
    options = [option for kind in kinds for option in ("--target", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(target)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source distribution of this checkout."""
    target = tmp_path_factory.mktemp("dist")
    build(ROOT, target, "wheel", "sdist")
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def test_the_source_distribution_builds_the_same_files(built: tuple[Path, Path], tmp_path: Path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    build(source, tmp_path / "again", "wheel", "sdist")
    for first in (wheel, sdist):
        assert (tmp_path / "again" / first.name).read_bytes() == first.read_bytes()
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before, (
        "a build leaves nothing in the source tree"
    )


def test_the_wheel_alone_is_the_agent_and_the_command_line(
    built: tuple[Path, Path], tmp_path: Path
):
    """With exactly the locked packages, outside the checkout, without any extra."""
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check"]
    locked = ["--require-hashes", "--requirement", str(ROOT / "deploy/requirements-agent.lock")]
    for arguments in (["install", *locked], ["install", "--no-deps", str(built[0])], ["check"]):
        subprocess.run([*pip, *arguments], capture_output=True, check=True)

    def railscope(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(tmp_path / "venv/bin/railscope"), *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "agent" in railscope("--help").stdout
    assert "railscope_gpu_info{" in railscope(
        "agent", "once", "--replay", str(ROOT / "tests/captures/hgx-h100-idle")
    ).stdout  # fmt: skip
    checkout = [sys.executable, "-P", "-m", "railscope", "files"]
    listed = subprocess.run(checkout, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert railscope("files").stdout == listed
    assert railscope("files", "--to", "copy").stdout == listed
    assert (tmp_path / "copy/deploy/slurm/prolog.sh").stat().st_mode & 0o111
    for command in COLLECTOR_COMMANDS:
        outcome = railscope(command, "--help")
        assert (outcome.returncode, outcome.stdout) == (2, "")
        (line,) = outcome.stderr.splitlines()
        assert line.endswith(
            ", which this command requires; fix: pip install 'railscope[collector]'"
        )
