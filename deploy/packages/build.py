"""`python deploy/packages/build.py --to DIRECTORY`: wheel, source distribution, .deb, .rpm, image, Helm chart, SBOMs, checksums.

Equal sources give equal files. The program is built from the last commit, or from a directory. Debian and RPM
packages have a virtual environment of Python 3.11 in /opt/railscope with exactly the locked packages; they are
for the machine type that builds them. dpkg-deb, rpmbuild and, for the container image, apt-get of Debian 12 are needed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import chart
import click
import oci_image

ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent
PYTHON = "3.11"
SITE_PACKAGES = f"lib/python{PYTHON}/site-packages"
SITE = f"opt/railscope/{SITE_PACKAGES}"
SHARED = {
    "dashboards": "dashboards/generated",
    "runbooks": "alerts/runbooks",
    **{name: f"deploy/{name}" for name in ("nagios", "node-problem-detector", "slurm", "systemd")},
}
"""Directories of files in the place where `make install` has them, which documentation and samples name."""
COMPLETIONS = {
    "railscope.bash": "usr/share/bash-completion/completions/railscope",
    "_railscope": "usr/share/zsh/vendor-completions/_railscope",
    "railscope.fish": "usr/share/fish/vendor_completions.d/railscope.fish",
}
ZSH_DIRECTORIES = ("zsh/vendor-completions", "zsh/site-functions")
"""Directories of completions in Debian and in distributions of RPM packages."""
MAINTAINER = "Railscope maintainers <maintainers@railscope.example>"
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
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


@dataclass(frozen=True)
class Package:
    """One Debian and one RPM package."""

    name: str
    summary: str
    debian_libraries: tuple[str, ...] = ()
    """Packages with the libraries that its binaries need; none has no binaries."""
    rpm_libraries: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    unit: str = ""
    settings: tuple[str, ...] = ()
    """Sample settings of `deploy` that are installed in /etc/railscope."""


COMMON = Package(
    "railscope-common",
    "Command line and files of Railscope",
    debian_libraries=("libc6 (>= 2.28)", "libgcc-s1"),
    rpm_libraries=("glibc >= 2.28", "libgcc"),
    depends=(f"python{PYTHON}",),
)
AGENT = Package(
    "railscope-agent",
    "Telemetry agent of GPU nodes",
    depends=("railscope-common",),
    unit="railscope-agent.service",
    settings=("agent.toml",),
)
COLLECTOR = Package(
    "railscope-collector",
    "Collector of the telemetry of GPU nodes",
    debian_libraries=("libc6 (>= 2.28)", "libgcc-s1", "libstdc++6", "zlib1g"),
    rpm_libraries=("glibc >= 2.28", "libgcc", "libstdc++", "zlib"),
    depends=("railscope-common",),
    unit="railscope-collector.service",
    settings=(
        "calendar.toml", "claims.csv", "collector.toml", "inventory.csv", "prices.toml", "quotas.csv", "retired.csv",
        "seller.toml", "tenants.csv", "tokens.toml",
    ),
)  # fmt: skip
PACKAGES = (COMMON, AGENT, COLLECTOR)


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
    """Create the environment of the agent and the command line, with completion."""
    install_locked(source / "deploy/requirements-agent.lock", root / SITE)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root / SITE)
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    put(root / "opt/railscope/pyvenv.cfg", settings)
    start = "#!/opt/railscope/bin/python -I\nimport sys\n\nfrom railscope.cli import main\n\nsys.exit(main())\n"
    put(root / "opt/railscope/bin/railscope", start, 0o755)
    (root / "opt/railscope/bin/python").symlink_to(f"/usr/bin/python{PYTHON}")
    for link, target in (
        ("usr/bin/railscope", "/opt/railscope/bin/railscope"),
        ("usr/share/railscope", f"/{SITE}/railscope/files"),
    ):
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
    share = root / "opt/railscope/share/railscope"
    share.mkdir(parents=True)
    for name, directory in SHARED.items():
        (share / name).symlink_to(Path("../..") / SITE_PACKAGES / "railscope/files" / directory)
    for name, installed in COMPLETIONS.items():
        put(root / installed, (source / "deploy/completions" / name).read_bytes())


def stage_collector(root: Path, source: Path, common: Path) -> None:
    """Add what the collector imports and the agent does not."""
    install_locked(source / "deploy/requirements-extras.lock", root / SITE)
    for path in sorted((root / SITE).rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif (common / path.relative_to(root)).exists():
            path.unlink()


def finish_tree(package: Package, root: Path, source: Path, epoch: int) -> None:
    """Add unit, settings and documents; compile; set modes and times."""
    if package.unit:
        put(
            root / "usr/lib/systemd/system" / package.unit,
            (source / "deploy/systemd" / package.unit).read_bytes(),
        )
    for name in package.settings:
        put(root / "etc/railscope" / name, (source / "deploy" / name).read_bytes())
    documents = root / "usr/share/doc" / package.name
    put(documents / "copyright", (RECIPES / "copyright").read_text())
    overrides = RECIPES / f"{package.name}.lintian-overrides"
    put(root / "usr/share/lintian/overrides" / package.name, overrides.read_bytes())
    if (root / "opt").exists():
        run(
            sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "-s", root, "-p", "/",
            root / "opt",
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


def write_deb(package: Package, root: Path, version: str, target: Path, epoch: int) -> None:
    """Write a Debian package of a tree."""
    architecture = DEBIAN_MACHINES[platform.machine()] if package.debian_libraries else "all"
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir()) // 1024
    control = root / "DEBIAN"
    own = [f"{name} (= {version}-1)" if name == COMMON.name else name for name in package.depends]
    # Files of an earlier version may be in another of the packages.
    others = [f"{each.name} (<< {version}-1)" for each in PACKAGES if each is not package]
    put(
        control / "control",
        f"Package: {package.name}\nSource: railscope\nVersion: {version}-1\nArchitecture: {architecture}\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {size}\nSection: admin\nPriority: optional\n"
        f"Depends: {', '.join((*own, *package.debian_libraries))}\n"
        f"Replaces: {', '.join(others)}\nDescription: {package.summary}\n"
        " Railscope observes GPU clusters with rail-optimized RDMA networks,\n"
        " attributes GPUs to tenants and jobs, and meters their use.\n",
    )
    date = run("date", "--utc", "--rfc-email", f"--date=@{epoch}").strip()
    entry = f"railscope ({version}-1) stable; urgency=medium\n\n  * CHANGELOG.md of this version.\n\n -- {MAINTAINER}  {date}\n"
    changelog = root / "usr/share/doc" / package.name / "changelog.Debian.gz"
    put(changelog, gzip.compress(entry.encode(), mtime=0))
    conffiles = "".join(f"/etc/railscope/{name}\n" for name in package.settings)
    if conffiles:
        put(control / "conffiles", conffiles)
    for script in ("preinst", "postinst", "prerm", "postrm"):
        recipe = RECIPES / f"{'service' if package.unit else 'common'}.{script}"
        if recipe.exists():
            put(
                control / script,
                recipe.read_text().replace("@SERVICE@", package.unit.removesuffix(".service")),
                0o755,
            )
    for path in [*control.rglob("*"), control, changelog]:
        os.utime(path, (epoch, epoch))
    file = target / f"{package.name}_{version}-1_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", root, file)
    shutil.rmtree(control)
    changelog.unlink()


def write_rpm(package: Package, root: Path, version: str, target: Path, epoch: int) -> None:
    """Write an RPM package of a tree."""
    listed = []
    for path in sorted(root.rglob("*")):
        name = f"/{path.relative_to(root)}".replace(*ZSH_DIRECTORIES)
        if path.is_dir() and not path.is_symlink():
            if name.startswith(
                ("/opt/railscope", "/etc/railscope", f"/usr/share/doc/{package.name}")
            ):
                listed.append(f'%dir "{name}"')
        elif "/lintian/" not in name:
            listed.append(
                f'%config(noreplace) "{name}"' if name.startswith("/etc/") else f'"{name}"'
            )
    own = [f"{name} = {version}-1" if name == COMMON.name else name for name in package.depends]
    requires = "".join(f"Requires: {name}\n" for name in (*own, *package.rpm_libraries))
    spec = (RECIPES / "package.spec").read_text()
    if package.unit:
        spec += (RECIPES / "service.spec").read_text()
    architecture = platform.machine() if package.debian_libraries else "noarch"
    for key, value in {
        "NAME": package.name, "VERSION": version, "SUMMARY": package.summary, "REQUIRES": requires, "ROOT": str(root),
        "ARCHITECTURE": "" if package.debian_libraries else "BuildArch: noarch\n", "FILES": "\n".join(listed),
        "SERVICE": package.unit.removesuffix(".service"), "MAINTAINER": MAINTAINER,
        "DATE": run("date", "--utc", f"--date=@{epoch}", "+%a %b %d %Y").strip(),
    }.items():  # fmt: skip
        spec = spec.replace(f"@{key}@", value)
    with tempfile.TemporaryDirectory() as directory:
        put(Path(directory) / "package.spec", spec)
        run(
            "rpmbuild",
            "--quiet",
            "-bb",
            "--define",
            f"_topdir {directory}",
            Path(directory) / "package.spec",
        )
        (built,) = Path(directory).glob("RPMS/*/*.rpm")
        shutil.copy(built, target / f"{package.name}-{version}-1.{architecture}.rpm")


# SBOMs and checksums -----------------------------------------------------------------------------


def write_sbom(
    name: str,
    version: str,
    trees: Sequence[Path],
    target: Path,
    base: Sequence[dict[str, str]] = (),
) -> None:
    """Write the CycloneDX bill of materials of what trees install, and of a base.

    Fails on a licence that is not accepted. Those of the base are in its files /usr/share/doc/*/copyright.
    """
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
    content["components"] += base
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


def build(
    source: Path,
    target: Path,
    work: Path,
    origin: oci_image.ImageOrigin,
    packages: Sequence[Package],
) -> None:
    """Build everything of a source tree."""
    epoch = origin.epoch
    os.environ |= {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    os.umask(0o022)
    run(sys.executable, "-m", "hatchling", "build", "--directory", target, cwd=source)
    (wheel,) = target.glob("*.whl")
    version = wheel.name.split("-")[1]
    trees = {package.name: work / package.name for package in packages}
    for package in packages:
        root = trees[package.name]
        root.mkdir()
        if package is COMMON:
            stage_common(root, source, wheel)
        if package is COLLECTOR:
            stage_collector(root, source, trees[COMMON.name])
        finish_tree(package, root, source, epoch)
        write_deb(package, root, distribution_version(version), target, epoch)
        write_rpm(package, root, distribution_version(version), target, epoch)
    chart.write_chart(source, target, epoch)
    write_sbom("railscope", version, [trees[COMMON.name]], target)
    if COLLECTOR in packages:
        everything = list(trees.values())
        write_sbom("railscope-collector", version, everything, target)
        base = oci_image.write_image(everything, version, origin, work, target)
        write_sbom("railscope-image", version, everything, target, base)
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
    help="Leave out the package of the collector and the image.",
)
def main(*, target: Path, source: Path | None, without_collector: bool) -> None:
    """Build wheel, source distribution, .deb, .rpm, container image, Helm chart, SBOMs and checksums."""
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        message = f"Python {platform.python_version()}: expected {PYTHON}, for which the packages are compiled"
        raise click.ClickException(message)
    check_target(target)
    packages = [package for package in PACKAGES if not (without_collector and package is COLLECTOR)]
    epoch = int(
        os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct", cwd=ROOT)
    )
    with tempfile.TemporaryDirectory() as directory, replaced(target) as built:
        work, revision = Path(directory), ""
        if source is None:
            revision = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
            source = work / "source"
            source.mkdir()
            run("git", "archive", "--output", work / "source.tar", "HEAD", cwd=ROOT)
            shutil.unpack_archive(work / "source.tar", source, filter="data")
        origin = oci_image.ImageOrigin(revision, epoch)
        build(source.resolve(), built, work, origin, packages)
    for path in sorted(target.iterdir()):
        click.echo(path)


if __name__ == "__main__":
    main()
