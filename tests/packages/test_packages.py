"""Wheel, source distribution, .deb, .rpm and chart: built twice, checked, installed in an empty environment and a fresh root."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.packages import EPOCH, ROOT, FreshRoot, build_packages, dependencies, require

pytestmark = pytest.mark.timeout(900)  # the first of these tests builds all packages
CAPTURE = ROOT / "tests/captures/hgx-h100-idle"
COLLECTOR_COMMANDS = (("bill",), ("collector", "run"), ("simulate",))
FORMS = ("railscope-*.whl", "railscope-*.tar.gz", "railscope-*.tgz", "railscope*.cdx.json",
         *(f"railscope-{name}{end}" for name in ("agent", "collector", "common") for end in ("_*.deb", "-*.rpm")))  # fmt: skip
BUILD = runpy.run_path(str(ROOT / "deploy/packages/build.py"), run_name="packages_build")
SITE = BUILD["SITE"]


def one(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def unpack_source(built: Path, directory: Path) -> Path:
    """Return the tree of the source distribution."""
    with tarfile.open(one(built, "*.tar.gz")) as archive:
        archive.extractall(directory, filter="data")
    (source,) = directory.iterdir()
    return source


def modified_times(tree: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in tree.rglob("*")}


@pytest.mark.thorough
def test_the_source_distribution_builds_all_packages_again(built_all: Path, tmp_path: Path):
    source = unpack_source(built_all, tmp_path / "unpacked")
    before = modified_times(source)
    build_packages(source, tmp_path / "again")
    assert modified_times(source) == before, "a build leaves nothing in the source tree"
    for path in built_all.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.thorough
def test_a_second_build_of_all_packages_is_equal(built_all: Path, tmp_path: Path):
    build_packages(ROOT, tmp_path / "again")
    sums = (tmp_path / "again/SHA256SUMS").read_text()
    assert sums == (built_all / "SHA256SUMS").read_text()


@pytest.mark.thorough
def test_the_checksums_are_those_of_all_files(built_all: Path):
    """There is a file of each form."""
    lines = (built_all / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.name: path for path in built_all.iterdir() if path.name != "SHA256SUMS"}
    assert all(any(path.match(form) for path in files.values()) for form in FORMS)
    assert sums == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }


@pytest.fixture(name="files")
def _files(request: pytest.FixtureRequest, name: str) -> Path:
    """Return the build that has a package."""
    is_collector = name in {"collector", "railscope-collector"}
    found: Path = request.getfixturevalue("built_all" if is_collector else "built")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "lock"),
    [
        ("railscope", "agent"),
        pytest.param("railscope-collector", "extras", marks=pytest.mark.thorough),
    ],
)
def test_the_bill_of_materials_has_every_locked_package(files: Path, name: str, lock: str):
    bill = json.loads(one(files, f"{name}-[0-9]*.cdx.json").read_text())
    found = {
        (part["name"].replace("_", "-").replace(".", "-").lower(), part["version"])
        for part in bill["components"]
    }
    lines = (ROOT / f"deploy/requirements-{lock}.lock").read_text().splitlines()
    pins = [
        line.split()[0].split("==")
        for line in lines
        if "==" in line and "version >= '3.12'" not in line
    ]
    assert found == {
        *((name, version) for name, version in pins),
        ("railscope", bill["metadata"]["component"]["version"]),
    }


# Wheel -------------------------------------------------------------------------------------------


@pytest.mark.journey
def test_the_wheel_has_every_file_of_its_modules(built: Path):
    with ZipFile(one(built, "*.whl")) as wheel:
        carried = set(wheel.namelist())
    command = ["git", "-C", str(ROOT), "ls-files", "agent", "collector", "railscope", "simulator"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    inside = {name[name.index("railscope") :] for name in tracked}
    assert len(inside) > 500
    assert inside <= carried
    assert not [name for name in carried if name.startswith(("railscope_dashboards", "bench"))]


@pytest.mark.thorough
def test_the_wheel_alone_is_the_agent_and_the_command_line(built: Path, tmp_path: Path):
    """With exactly the locked packages, outside the checkout, without any extra."""
    venv.create(tmp_path / "venv")
    installed = ["--python", str(tmp_path / "venv/bin/python")]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *installed]
    locked = ["--require-hashes", "--requirement", str(ROOT / "deploy/requirements-agent.lock")]
    wheel = ["--no-deps", str(one(built, "*.whl"))]
    for arguments in (["install", *locked], ["install", *wheel], ["check"]):
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
    read = railscope("agent", "once", "--replay", str(CAPTURE))
    assert "railscope_gpu_info{" in read.stdout
    checkout = [sys.executable, "-P", "-m", "railscope", "files"]
    listed = subprocess.run(checkout, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert railscope("files").stdout == listed
    assert railscope("files", "--to", "copy").stdout == listed
    assert (tmp_path / "copy/deploy/slurm/prolog.sh").stat().st_mode & 0o111
    for command in COLLECTOR_COMMANDS:
        outcome = railscope(*command, "--help")
        assert (outcome.returncode, outcome.stdout) == (2, "")
        (line,) = outcome.stderr.splitlines()
        assert line.endswith(
            f", which this command requires; fix: {tmp_path}/venv/bin/python -m pip install 'railscope[collector]'"
        )


# Debian and RPM ----------------------------------------------------------------------------------


EACH_PACKAGE = pytest.mark.parametrize(
    "name",
    ["agent", "common", pytest.param("collector", marks=pytest.mark.thorough)],
)


# The others have thousands of files of Python packages, of which Lintian reads each.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "agent",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("common", "collector")),
    ],
)
def test_lintian_finds_nothing_but_what_is_listed(files: Path, name: str):
    require("lintian", "lintian")
    command = ["lintian", "--allow-root", "--fail-on", "error,warning"]
    file = str(one(files, f"railscope-{name}_*.deb"))
    outcome = subprocess.run([*command, file], capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout) == (0, "")


@pytest.mark.thorough
@EACH_PACKAGE
def test_rpmlint_finds_nothing_but_what_is_listed(files: Path, name: str):
    require("rpmlint", "rpmlint")
    settings = str(ROOT / "deploy/packages/rpmlint.toml")
    command = ["rpmlint", "--config", settings, str(one(files, f"railscope-{name}-*.rpm"))]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout
    assert " 0 errors, 0 warnings" in outcome.stdout


@pytest.mark.thorough
@EACH_PACKAGE
def test_the_rpm_package_has_the_files_of_the_debian_package(files: Path, name: str):
    def paths(*command: str) -> set[str]:
        return set(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        )

    listing = paths("dpkg-deb", "--contents", str(one(files, f"railscope-{name}_*.deb")))
    in_deb = {line.split(maxsplit=5)[5].partition(" -> ")[0].lstrip(".") for line in listing}
    in_deb = {path for path in in_deb if not path.endswith("/")}
    in_rpm = paths(
        "rpm", "--query", "--package", "--list", str(one(files, f"railscope-{name}-*.rpm"))
    )
    own = {path for path in in_deb if "/lintian/" in path or path.endswith("changelog.Debian.gz")}
    assert {
        path.replace("zsh/vendor-completions", "zsh/site-functions") for path in in_deb - own
    } <= in_rpm
    assert len(own) == 2


MOVED = f"{SITE}/jinja2/__init__.py"
"""File of the collector, which is in another package in the next version."""


def extract(deb: Path, directory: Path) -> Path:
    """Return the tree of a package, with other sample settings of the agent and a file of another package."""
    tree = directory / deb.stem
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tree)], check=True)
    if (settings := tree / "etc/railscope/agent.toml").exists():
        settings.write_text(settings.read_text() + "# of the next version\n")
    if (tree / SITE).exists():
        (tree / MOVED).parent.mkdir()
        (tree / MOVED).write_text("moved\n")
    return tree


def later(deb: Path, directory: Path) -> Path:
    """Return a package as the next version."""
    tree = extract(deb, directory)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("-1\n", "-2\n").replace("-1)", "-2)"))
    file = directory / f"{deb.stem}.deb"
    subprocess.run(
        ["dpkg-deb", "-Zzstd", "-z1", "--build", str(tree), str(file)],
        capture_output=True,
        check=True,
    )
    return file


@pytest.fixture(
    name="names",
    scope="module",
    params=[
        pytest.param(("common", "agent"), id="agent"),
        pytest.param(("common", "agent", "collector"), id="all", marks=pytest.mark.thorough),
    ],
)
def _names(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Packages that are installed together."""
    names: tuple[str, ...] = request.param
    return names


@pytest.fixture(name="installed_files", scope="module")
def _installed_files(request: pytest.FixtureRequest, names: tuple[str, ...]) -> Path:
    found: Path = request.getfixturevalue("built_all" if "collector" in names else "built")
    return found


@pytest.fixture(name="root", scope="module")
def _root(
    installed_files: Path, names: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> FreshRoot:
    """A root with exactly what the packages depend on; each test leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("only root may install packages")
    require("mmdebstrap", "mmdebstrap")
    debs = [one(installed_files, f"railscope-{name}_*.deb") for name in names]
    needed = {package for deb in debs for package in dependencies(deb)}
    path = tmp_path_factory.mktemp("fresh") / "root"
    return FreshRoot(path, *needed, "dash", "coreutils", "systemd")


@pytest.mark.thorough
def test_debian_packages_are_installed_upgraded_removed_and_purged(
    installed_files: Path, names: tuple[str, ...], root: FreshRoot, tmp_path: Path
):
    debs = [one(installed_files, f"railscope-{name}_*.deb") for name in names]
    fresh = root.paths()

    other = root.path / "opt/railscope/pyvenv.cfg"
    other.parent.mkdir(parents=True)
    other.write_text("of make install\n")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        root.dpkg("--install", debs[0])
    assert b"fix: remove /opt/railscope" in raised.value.stderr
    assert other.read_text() == "of make install\n"
    shutil.rmtree(root.path / "opt")

    root.dpkg("--install", *debs)

    def railscope(*arguments: str) -> str:
        outcome = root.run("railscope", *arguments)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    assert "railscope, version" in railscope("--version")
    if "collector" in names:
        railscope("collector", "check")
    shutil.copytree(CAPTURE, root.path / "capture")
    assert "railscope_gpu_info{" in railscope("agent", "once", "--replay", "/capture")
    shutil.rmtree(root.path / "capture")
    assert (root.path / "usr/share/railscope").readlink() == Path(
        "/opt/railscope/lib/python3.11/site-packages/railscope/files"
    )
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*/*.json")]
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"/opt/railscope/share/railscope/[\w/.-]*\w", text))
    assert len(named) >= 4
    for path in named:
        assert (root.path / path.lstrip("/")).exists(), path
        assert root.run("test", "-x", path).returncode == 0, path
    for unit in (f"railscope-{name}" for name in names[1:]):
        assert root.run("systemctl", "is-enabled", unit).stdout == "disabled\n"

    settings = root.path / "etc/railscope/agent.toml"
    settings.write_text('node = "mine"\n')
    state = root.path / "var/lib/private/railscope-agent/spool"
    state.mkdir(parents=True)
    (root.path / "etc/railscope/collector.token").write_text("secret\n")
    root.run("systemctl", "enable", "railscope-agent")
    root.dpkg("--install", *(later(deb, tmp_path) for deb in debs[:2]))
    if "collector" in names:
        root.dpkg("--remove", "railscope-collector")
        assert (root.path / MOVED).read_text() == "moved\n"
    assert settings.read_text() == 'node = "mine"\n'
    assert state.is_dir()
    assert root.run("systemctl", "is-enabled", "railscope-agent").stdout == "enabled\n"
    assert "railscope, version" in railscope("--version")

    root.dpkg("--remove", "railscope-agent", "railscope-common")
    assert not (root.path / "opt/railscope").exists()
    assert settings.exists()
    assert state.is_dir()
    assert not list((root.path / "etc/systemd/system").rglob("railscope*"))
    root.dpkg("--purge", *(f"railscope-{name}" for name in names))
    left = root.paths() - fresh
    assert {path for path in left if "railscope" in path} == set()


@pytest.mark.thorough
def test_rpm_packages_are_installed_upgraded_and_removed(
    installed_files: Path, names: tuple[str, ...], root: FreshRoot, tmp_path: Path
):
    fresh = root.paths()
    root.rpm("--install", *(one(installed_files, f"railscope-{name}-*.rpm") for name in names))
    command = ("collector", "check") if "collector" in names else ("--version",)
    assert root.run("railscope", *command).returncode == 0
    assert root.run("systemctl", "is-enabled", "railscope-agent").stdout == "disabled\n"
    root.run("systemctl", "enable", "railscope-agent")
    installed = [f"railscope-{name}" for name in names]
    root.rpm("--verify", *installed)

    settings = root.path / "etc/railscope/agent.toml"
    settings.write_text('node = "mine"\n')
    state = root.path / "var/lib/private/railscope-agent/spool"
    state.mkdir(parents=True)
    source = tmp_path / "source"
    shutil.copytree(ROOT / "deploy", source / "deploy")
    sample = source / "deploy/agent.toml"
    sample.write_text(sample.read_text() + "# of the next version\n")
    described = BUILD["package_settings"](source, tmp_path, "99.0.0", int(EPOCH))
    BUILD["write_packages"](described["railscope-agent"], tmp_path)
    root.rpm("--upgrade", one(tmp_path, "*.rpm"))
    assert settings.read_text() == 'node = "mine"\n'
    new = settings.with_name("agent.toml.rpmnew")
    assert new.read_text().endswith("# of the next version\n")
    assert root.run("systemctl", "is-enabled", "railscope-agent").stdout == "enabled\n"

    root.rpm("--erase", *installed)
    assert state.is_dir()
    assert not list((root.path / "etc/systemd/system").rglob("railscope*"))
    settings.with_name("agent.toml.rpmsave").unlink()
    new.unlink()
    shutil.rmtree(root.path / "var/lib/private")
    left = {path for path in root.paths() - fresh if "railscope" in path}
    assert left <= {"etc/railscope"}


# Versions and licences ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "is_accepted"),
    [
        ([{"license": {"id": "MIT"}}], True),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], True),
        ([{"expression": "Apache-2.0 OR (BSD-3-Clause AND MIT)"}], True),
        ([{"expression": "MIT AND GPL-3.0-only"}], False),
        ([{"license": {"id": "MIT"}}, {"license": {"id": "AGPL-3.0-only"}}], False),
        ([], False),
        (None, False),
    ],
)
def test_a_licence_that_was_not_accepted_fails_the_build(stated: object, is_accepted: bool):  # noqa: FBT001 - a case
    problem = BUILD["licence_problem"]({"name": "something", "licenses": stated})
    assert (problem == "") is is_accepted
    assert is_accepted or problem.startswith("licence of something: ")
