"""Packages of this checkout, and a fresh root to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EPOCH = os.environ.get("SOURCE_DATE_EPOCH") or "1700000000"


def require(program: str, package: str) -> None:
    """Skip a test whose program is missing."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: install the Debian package {package}")


def build_packages(source: Path, target: Path, *options: str) -> None:
    """Build the packages of a source tree as `make packages` does."""
    command = [sys.executable, str(ROOT / "deploy/packages/build.py"), "--to", str(target)]
    subprocess.run(
        [*command, "--source", str(source), *options],
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        check=True,
    )


def dependencies(deb: Path) -> list[str]:
    """Return the names of the packages of Debian that a package depends on."""
    command = ["dpkg-deb", "--field", str(deb), "Depends"]
    stated = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [alternative.split()[0] for alternative in stated.split(",")]
    return [name for name in names if not name.startswith("railscope-")]


class FreshRoot:
    """Root directory with the files of Debian packages only, without their installation scripts."""

    def __init__(self, path: Path, *packages: str) -> None:
        self.path = path
        command = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(packages)}"]
        subprocess.run([*command, "bookworm", str(path)], capture_output=True, check=True)

    def dpkg(self, *arguments: str | Path) -> None:
        """Install or remove packages. The database of the root has none of Debian's packages."""
        options = [f"--root={self.path}", "--force-depends", "--force-confdef", "--force-confold"]
        subprocess.run(["dpkg", *options, *arguments], capture_output=True, check=True)

    def rpm(self, *arguments: str | Path) -> None:
        """Install, verify or remove RPM packages, without their dependencies."""
        command = ["rpm", "--root", str(self.path), "--nodeps", *arguments]
        subprocess.run(command, capture_output=True, check=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the root."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_OFFLINE": "1"}
        return subprocess.run(
            ["chroot", str(self.path), *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def paths(self) -> set[str]:
        """Return all paths but those of the database of packages and its log."""
        found = {str(path.relative_to(self.path)) for path in self.path.rglob("*")}
        return {path for path in found if not path.startswith(("var/lib/dpkg/", "var/log/"))}
