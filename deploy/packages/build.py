"""`python deploy/packages/build.py --to DIRECTORY`: wheel, source distribution, .deb, .rpm, Helm chart, SBOMs, checksums.

Equal sources give equal files. The program is built from the last commit, or from a directory. Debian and RPM
packages have a virtual environment of Python 3.11 in /opt/railscope with exactly the locked packages; they are
for the machine type that builds them. nfpm.yaml describes them. Helm is needed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import string
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import click
import yaml

ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent
NFPM = Path(sysconfig.get_path("scripts")) / "nfpm"
PYTHON = "3.11"
SITE_PACKAGES = f"lib/python{PYTHON}/site-packages"
SITE = f"opt/railscope/{SITE_PACKAGES}"
CHART = "deploy/helm/railscope"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
COLLECTOR = "railscope-collector"
MIN_GLIBC_MINOR = 17
MAX_GLIBC_MINOR = 28
"""Of glibc 2.28, which Debian 10, Ubuntu 20.04 and RHEL 8 have."""
LICENCES = frozenset(
    (
        "0BSD", "Apache-2.0", "Apache Software License", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0",
        "MIT", "MIT-0", "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "PSF-2.0", "Python-2.0", "Zlib",
    )
)  # fmt: skip
"""Licences of dependencies that may be distributed with the program, as their metadata names them."""
KNOWN_LICENCES = {
    "protobuf": "BSD-3-Clause",  # states none in its metadata
    "psycopg": "LGPL-3.0-only",  # separate files, which a user may replace
    "psycopg-binary": "LGPL-3.0-only",
}
"""Licences of other packages, each accepted after reading it."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(  # noqa: S603 - the commands are in this file
        [str(one) for one in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        message = f"{command[0]}: exit status {done.returncode}: {done.stderr[-2000:]}"
        raise click.ClickException(message)
    return done.stdout


def import_path(source: Path) -> str:
    """Return the directories from which the programs of a source tree are imported, as PYTHONPATH."""
    return os.pathsep.join(str(source / name) for name in ("", "agent", "collector", "simulator"))


def put(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def check_target(target: Path) -> None:
    """Raise ClickException if a directory has files that no earlier build wrote: they would be removed."""
    if target.exists() and not target.is_dir():
        message = (
            f"{target} is not a directory: expected a new or empty directory, or an earlier build"
        )
        raise click.ClickException(message)
    sums = target / "SHA256SUMS"
    lines = sums.read_text().splitlines() if sums.is_file() else []
    built = {sums.name, *(line.partition("  ")[2] for line in lines)}
    others = {path.name for path in target.iterdir()} - built if target.exists() else set()
    if others:
        message = f"{target} has files of no build, such as {min(others)}: expected a new or empty directory, or an earlier build"
        raise click.ClickException(message)


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Yield an empty directory beside a target, which replaces it afterwards; not after an error."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
        new = Path(directory) / "new"
        new.mkdir()
        yield new
        if target.exists():
            target.rename(Path(directory) / "former")
        new.rename(target)


# Trees -------------------------------------------------------------------------------------------


def install_locked(lock: Path, target: Path) -> None:
    """Install the packages of a lock, as wheels for the Python of the packages."""
    minors = range(MAX_GLIBC_MINOR, MIN_GLIBC_MINOR - 1, -1)
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in minors] + [f"manylinux2014_{machine}"]
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile",
        "--require-hashes", "--requirement", lock, "--target", target, "--only-binary", ":all:",
        "--implementation", "cp", "--abi", f"cp{PYTHON.replace('.', '')}", "--python-version", PYTHON,
        *(option for tag in tags for option in ("--platform", tag)),
    )  # fmt: skip
    shutil.rmtree(target / "bin", ignore_errors=True)  # with the path of the building Python
    (target / "example.py").unlink(missing_ok=True)  # of nvidia-ml-py


def stage_common(root: Path, source: Path, wheel: Path) -> None:
    """Create the environment of the agent and the command line."""
    install_locked(source / "deploy/requirements-agent.lock", root / SITE)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / SITE)
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    put(root / "opt/railscope/pyvenv.cfg", settings)
    start = "#!/opt/railscope/bin/python -I\nimport sys\n\nfrom railscope.cli import main\n\nsys.exit(main())\n"
    put(root / "opt/railscope/bin/railscope", start)
    (root / "opt/railscope/bin/python").symlink_to(f"/usr/bin/python{PYTHON}")


def stage_collector(root: Path, source: Path, common: Path) -> None:
    """Add what the collector imports and the agent does not."""
    install_locked(source / "deploy/requirements-extras.lock", root / SITE)
    for path in sorted((root / SITE).rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif (common / path.relative_to(root)).exists():
            path.unlink()


def finish_tree(root: Path, epoch: int) -> None:
    """Compile; set modes and times."""
    run(
        sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "-s", root, "-p", "/", root,
    )  # fmt: skip
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            is_program = path.suffix == ".sh" or path.parent.name == "bin"
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


# Packages ----------------------------------------------------------------------------------------


def distribution_version(version: str) -> str:
    """Return the version as dpkg and rpm order it: 1.0rc1 before 1.0."""
    return re.sub(r"\.?(?=(?:a|b|rc|dev)\d)", "~", version)


def package_settings(source: Path, trees: Path, version: str, epoch: int) -> dict[str, Any]:
    """Return the settings of nfpm.yaml for each package. Writes the scripts that they name below `trees`."""
    scripts = trees / "scripts"
    date = datetime.fromtimestamp(epoch, UTC)
    text = string.Template((RECIPES / "nfpm.yaml").read_text()).substitute(
        ARCHITECTURE=MACHINES[platform.machine()], DATE=date.isoformat(), SCRIPTS=scripts,
        SITE=f"/{SITE}", SOURCE=source, TREES=trees, VERSION=version,
    )  # fmt: skip
    found = {each["name"]: each for each in yaml.safe_load(text)["packages"]}
    for recipe in RECIPES.glob("*.p[or]*"):
        for name in found if recipe.stem == "service" else ["common"]:
            put(scripts / f"{name}{recipe.suffix}", recipe.read_text().replace("@SERVICE@", name))
    (maintainer,) = {each["maintainer"] for each in found.values()}
    entry = (
        f"railscope ({version}-1) stable; urgency=medium\n\n  * CHANGELOG.md of this version.\n\n"
        f" -- {maintainer}  {format_datetime(date)}\n"
    )
    put(scripts / "changelog.Debian.gz", gzip.compress(entry.encode(), mtime=0))
    for entry in (entry for each in found.values() for entry in each["contents"]):
        if entry.get("type") != "tree":
            entry["file_info"] = {"mtime": date.isoformat()}
            if entry.get("type") in {None, "config|noreplace", "doc"}:
                entry["file_info"]["mode"] = 0o644
    return found


def write_packages(settings: dict[str, Any], target: Path) -> None:
    """Write the Debian and the RPM package with these settings of nfpm."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(settings, file)
        file.flush()
        for kind in ("deb", "rpm"):
            run(NFPM, "package", "--config", file.name, "--packager", kind, "--target", target)


def write_chart(source: Path, target: Path, work: Path, epoch: int) -> None:
    """Write the archive of the Helm chart. Two of its directories are links, which source distributions do not contain."""
    tree = work / "railscope"
    shutil.copytree(source / CHART, tree, ignore=shutil.ignore_patterns("dashboards", "rules"))
    for name, files in (("dashboards", "dashboards/generated"), ("rules", "alerts/rules")):
        shutil.copytree(source / files, tree / name)
    for path in tree.rglob("*"):
        os.utime(path, (epoch, epoch))
    helm = shutil.which("helm", path=os.pathsep.join((str(ROOT / ".helm"), os.environ["PATH"])))
    if helm is None:
        message = f"helm is missing in {ROOT / '.helm'} and PATH; fix: make servers"
        raise click.ClickException(message)
    run(helm, "package", tree, "--destination", target)


# SBOMs and checksums -----------------------------------------------------------------------------


def write_sbom(name: str, version: str, trees: Iterable[Path], target: Path) -> None:
    """Write the CycloneDX bill of materials of what trees install. Fails on a licence that is not accepted."""
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory)
        site = environment / f"lib/python{PYTHON}/site-packages"
        for tree in trees:
            for metadata in (tree / SITE).glob("*.dist-info"):
                shutil.copytree(metadata, site / metadata.name)
        home = Path(sys.executable).resolve().parent
        put(environment / "pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n")
        (environment / "bin").mkdir()
        (environment / "bin/python").symlink_to(Path(sys.executable).resolve())
        output = run(
            sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--no-validate",
            "--spec-version", "1.6", "--output-format", "JSON", environment / "bin/python",
        )  # fmt: skip
    content = json.loads(output)
    problems = [
        problem for component in content["components"] if (problem := licence_problem(component))
    ]
    if problems:
        raise click.ClickException("; ".join(problems))
    content["metadata"]["component"] = {
        "type": "application",
        "name": name,
        "version": version,
        "bom-ref": name,
    }
    put(target / f"{name}-{version}.cdx.json", json.dumps(content, indent=1, sort_keys=True) + "\n")


def licence_problem(component: dict[str, object]) -> str:
    """Return what is wrong with the licence of a component; empty if it may be distributed."""
    name = str(component["name"])
    if name == "railscope" or name in KNOWN_LICENCES:
        return ""
    stated = component.get("licenses")
    found = {
        licence
        for entry in (stated if isinstance(stated, list) else ())
        for licence in licences(entry)
    }
    if found and found <= LICENCES:
        return ""
    return f"licence of {name}: {', '.join(sorted(found)) or 'none stated'}: expected one of LICENCES; fix: read it, and add it"


def licences(entry: dict[str, object]) -> list[str]:
    """Return the licences that an entry of a bill of materials names."""
    if isinstance(expression := entry.get("expression"), str):
        return re.split(r" (?:AND|OR) ", expression.replace("(", "").replace(")", ""))
    licence = entry["license"]
    named = licence.get("id") or licence.get("name") if isinstance(licence, dict) else licence
    return [str(named).rpartition(" :: ")[2]]


def write_checksums(target: Path) -> None:
    """Write SHA256SUMS of all files of a directory."""
    files = sorted(path for path in target.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    put(target / "SHA256SUMS", "".join(lines))


def build(source: Path, target: Path, work: Path, epoch: int, *, with_collector: bool) -> None:
    """Build everything of a source tree."""
    os.environ |= {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    os.umask(0o022)
    run(sys.executable, "-m", "hatchling", "build", "--directory", target, cwd=source)
    (wheel,) = target.glob("*.whl")
    version = wheel.name.split("-")[1]
    common, collector = (work / name for name in ("railscope-common", COLLECTOR))
    stage_common(common, source, wheel)
    finish_tree(common, epoch)
    write_sbom("railscope", version, [common], target)
    if with_collector:
        stage_collector(collector, source, common)
        finish_tree(collector, epoch)
        write_sbom(COLLECTOR, version, [common, collector], target)
    for name, settings in package_settings(
        source, work, distribution_version(version), epoch
    ).items():
        if with_collector or name != COLLECTOR:
            write_packages(settings, target)
    write_chart(source, target, work, epoch)
    write_checksums(target)


@click.command()
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the built files: a new or empty one, or that of an earlier build, which is replaced.",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True),
    help="Source tree. Default: the last commit.",
)
@click.option(
    "--without-collector",
    is_flag=True,
    help="Leave out the package of the collector.",
)
def main(*, target: Path, source: Path | None, without_collector: bool) -> None:
    """Build wheel, source distribution, .deb, .rpm, Helm chart, SBOMs and checksums."""
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        message = f"Python {platform.python_version()}: expected {PYTHON}, for which the packages are compiled"
        raise click.ClickException(message)
    check_target(target)
    epoch = int(
        os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct", cwd=ROOT)
    )
    with tempfile.TemporaryDirectory() as directory, replaced(target) as built:
        work = Path(directory)
        if source is None:
            source = work / "source"
            source.mkdir()
            run("git", "archive", "--output", work / "source.tar", "HEAD", cwd=ROOT)
            shutil.unpack_archive(work / "source.tar", source, filter="data")
        build(source.resolve(), built, work, epoch, with_collector=not without_collector)
    for path in sorted(target.iterdir()):
        click.echo(path)


if __name__ == "__main__":
    main()
