"""Installed files: units, samples, the Makefile and the run of all checks."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.command_line import run

import railscope_agent.config
import railscope_collector.config
from railscope import settings
from railscope.cli import COLLECTOR_MODULES
from railscope_collector.access import credentials

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = {name: DEPLOY / f"systemd/railscope-{name}.service" for name in ("agent", "collector")}
EACH_UNIT = pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
MAX_EXPOSURE = {"agent": 1.6, "collector": 1.5}
MAX_EXPOSURE_OF_TENANCY = 2.0
PROGRAMS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "agent": (railscope_agent.config.AgentSettings, railscope_agent.config.PREFIX),
    "collector": (railscope_collector.config.CollectorSettings, railscope_collector.config.PREFIX),
}
EACH_PROGRAM = pytest.mark.parametrize("program", PROGRAMS)
SANDBOX = Path(__file__).parent / "unit_sandbox.py"


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing: install the Debian package systemd")
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False
    )


def directives(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


# Units -----------------------------------------------------------------------------------------


@EACH_UNIT
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path):
    """With a program that exists: systemd checks for it."""
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/railscope/bin/railscope", sys.executable))
    outcome = systemd_analyze("verify", "--recursive-errors=yes", str(here))
    ours = [line for line in outcome.stderr.splitlines() if unit.stem in line]
    assert (outcome.returncode, ours) == (0, []), outcome.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_closed(name: str):
    threshold = str(round(MAX_EXPOSURE[name] * 10))
    unit = str(UNITS[name])
    outcome = systemd_analyze("security", "--offline=true", f"--threshold={threshold}", unit)
    assert outcome.returncode == 0, outcome.stdout


def with_drop_ins(unit: Path, directory: Path, *names: str) -> Path:
    """A unit as systemd merges it with its drop-ins."""
    merged = directory / unit.name
    texts = [unit.read_text(), *((DEPLOY / "systemd" / name).read_text() for name in names)]
    merged.write_text("\n".join(texts).replace("/opt/railscope/bin/railscope", sys.executable))
    return merged


@pytest.mark.thorough
def test_the_agent_stays_closed_where_it_reads_tenancy(tmp_path: Path):
    unit = with_drop_ins(UNITS["agent"], tmp_path, "tenancy.conf")
    threshold = str(round(MAX_EXPOSURE_OF_TENANCY * 10))
    outcome = systemd_analyze("security", "--offline=true", f"--threshold={threshold}", str(unit))
    assert outcome.returncode == 0, outcome.stdout


def test_systemd_understands_every_drop_in(tmp_path: Path):
    names = sorted(file.name for file in (DEPLOY / "systemd").glob("*.conf"))
    assert names == ["clock.conf", "network.conf", "tenancy.conf"]
    unit = with_drop_ins(UNITS["agent"], tmp_path, *names)
    outcome = systemd_analyze("verify", "--recursive-errors=yes", str(unit))
    ours = [line for line in outcome.stderr.splitlines() if unit.stem in line]
    assert (outcome.returncode, ours) == (0, []), outcome.stderr


@EACH_UNIT
def test_a_secret_may_be_missing(unit: Path):
    """systemd does not start a unit whose credential cannot be loaded and has no default."""
    printed = directives(unit)
    loaded = {value.partition(":")[0] for value in printed["LoadCredential"]}
    assert loaded == {value.partition(":")[0] for value in printed["SetCredential"]}


# Under the restrictions of the units -----------------------------------------------------------


def sandboxed(unit: Path, *command: str) -> list[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing: install the Debian package systemd")
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is missing: install the Debian package libseccomp2")
    return [sys.executable, str(SANDBOX), str(unit), sys.executable, *command]


@contextmanager
def running(name: str, *options: str) -> Iterator[str]:
    """A program under the restrictions of its unit; gives the address it listens on."""
    command = sandboxed(
        UNITS[name], "-m", "railscope", name, "run", "--listen", "127.0.0.1:0", *options
    )
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"address=(\S+)", line)
            assert match, line
            yield match[1]
        finally:
            process.terminate()
            process.communicate()
    assert process.returncode == 0


def page(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def until(wanted: str, address: str, seconds: float = 60.0) -> str:
    """The first page that holds a text."""
    end = time.monotonic() + seconds
    while wanted not in (text := page(address)) and time.monotonic() < end:
        time.sleep(0.1)
    return text


@pytest.mark.journey
def test_both_programs_work_under_their_units(tmp_path: Path):
    token = credentials.generate_token()
    (tmp_path / "tokens.toml").write_text(f'[nodes]\ngpu-1 = "{credentials.digest_token(token)}"\n')
    (tmp_path / "token").write_text(token)
    (tmp_path / "agent.toml").write_text(
        f'node = "gpu-1"\n[collector]\npush_seconds = 0.5\ntoken_file = "{tmp_path / "token"}"\n'
    )
    seen = 'railscope_node_reporting{node="gpu-1"} 1'
    with (
        running(
            "collector",
            "--state-directory",
            str(tmp_path / "collector"),
            "--allow-anonymous-read",
            "--tokens-file",
            str(tmp_path / "tokens.toml"),
        ) as address,
        running(
            "agent",
            "--state-directory",
            str(tmp_path / "agent"),
            "--config",
            str(tmp_path / "agent.toml"),
            "--collector",
            f"http://{address}",
        ) as own,
    ):
        assert seen in until(seen, address)
        is_read = 'railscope_source_state{source="host",state="ok"} 1'
        assert is_read in until(is_read, own)


@pytest.mark.thorough
def test_the_agent_may_read_the_clock_error_with_a_drop_in(tmp_path: Path):
    program = "import ctypes; print(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))"

    def answer(unit: Path) -> int:
        command = sandboxed(unit, "-c", program)
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert answer(UNITS["agent"]) == -1
    assert answer(with_drop_ins(UNITS["agent"], tmp_path, "clock.conf")) >= 0


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may receive LLDP frames without the unit")
def test_the_agent_may_query_and_receive_from_the_network(tmp_path: Path):
    program = """
from railscope_agent.host.live_host import LiveHost
host = LiveHost()
print({link["name"] for link in host.call("netlink", "links")} >= {"lo"})
print(host.call("lldp", "neighbours"))
host.close()
"""
    outcome = subprocess.run(
        sandboxed(with_drop_ins(UNITS["agent"], tmp_path, "network.conf"), "-c", program),
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stdout.splitlines()[0] == "True"
    assert outcome.stdout.splitlines()[1].startswith("{")


# Sample files ----------------------------------------------------------------------------------


@EACH_PROGRAM
def test_sample_settings_are_the_defaults_without_their_comment_signs_too(
    program: str, tmp_path: Path
):
    kind, prefix = PROGRAMS[program]
    text = (DEPLOY / f"{program}.toml").read_text()
    bare = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    file = tmp_path / "settings.toml"
    file.write_text(bare)
    assert settings.load(kind, file=file, environment={}, prefix=prefix) == kind()
    assert len(tomllib.loads(bare)) == len(msgspec.structs.fields(kind)), "all settings are there"


SAMPLES = {
    "tokens_file": "tokens.toml",
    "tenants_file": "tenants.csv",
    "quotas_file": "quotas.csv",
    "calendar_file": "calendar.toml",
    "retired_file": "retired.csv",
    "inventory_file": "inventory.csv",
    "claims_file": "claims.csv",
}


EXAMPLES = {".toml": r"^# (?=\[\[|[\w-]+ = )", ".csv": r"^# (?=[\w-]+,)"}
"""Beginning of a line of a comment that is an example."""


@pytest.mark.parametrize("pattern", [{}, EXAMPLES], ids=["as is", "examples"])
def test_sample_files_can_be_read(tmp_path: Path, pattern: dict[str, str]):
    """As they are, and with the examples in their comments."""
    for name in (*SAMPLES.values(), "prices.toml"):
        source = DEPLOY / name
        text = re.sub(pattern.get(source.suffix, "^$"), "", source.read_text(), flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
    lines = [f'{key} = "{tmp_path / name}"' for key, name in SAMPLES.items()]
    lines += [f'state_directory = "{tmp_path / "state"}"', 'listen = "127.0.0.1:0"']
    (tmp_path / "collector.toml").write_text("\n".join(lines))
    checked = run("collector", "check", "--config", str(tmp_path / "collector.toml"))
    assert checked.exit_code == 0, checked.output
    priced = run("bill", "prices", "check", str(tmp_path / "prices.toml"))
    assert priced.exit_code == 0, priced.output


# The lock --------------------------------------------------------------------------------------


def locked(name: str) -> dict[str, list[Requirement]]:
    """Pinned requirements of a lock file by name; each has hashes."""
    found: dict[str, list[Requirement]] = {}
    entries = re.split(r"\n(?=\S)", (DEPLOY / name).read_text().strip())
    for entry in entries:
        pin, *hashes = entry.replace("\\\n", "").split("--hash=")
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one.strip()) for one in hashes)
        requirement = Requirement(pin.strip())
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def declared(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of the program with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        yield Requirement(text)
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            own = canonicalize_name(requirement.name) == "railscope"
            yield from declared(*requirement.extras) if own else [requirement]


EXTRAS = {
    "requirements-agent.lock": (),
    "requirements.lock": ("collector",),
    "requirements-extras.lock": (
        "postgresql", "parquet", "archive", "otlp", "switches"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_pins_every_dependency_as_it_is_declared(name: str):
    pins = locked(name)
    for requirement in declared(*EXTRAS[name]):
        for pin in pins[canonicalize_name(requirement.name)]:
            (version,) = (one.version for one in pin.specifier)
            assert requirement.specifier.contains(version), f"run make lock: {requirement}, {pin}"


def test_the_agent_is_installed_without_the_packages_of_the_collector():
    """A GPU server has no NumPy, no database library and no HTTP framework."""
    of_collector = {canonicalize_name(one.name) for one in declared("collector")}
    of_agent = {canonicalize_name(one.name) for one in declared()}
    modules = {name.removesuffix("-py").replace("-", "_") for name in of_collector - of_agent}
    assert modules == COLLECTOR_MODULES
    assert not (of_collector - of_agent) & set(locked("requirements-agent.lock"))
