"""A real snmpd of Debian for tests, on a free port of the loopback interface."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import snmp_objects

from bench.harness import free_port

START_SECONDS = 30
COMMUNITY, USER = "railscope-test", "watcher"
PASSWORD, PRIVACY_PASSWORD = "authentication-password", "privacy-password"
MODULES = "pass_persist,usmConf,usmUser,snmpEngine,vacm_conf,vacm_context,snmp_mib"
"""Modules without those of IF-MIB, which would answer for this machine."""
SYSTEM_MODULE = "system_mib"


class SwitchAgent:
    """An snmpd that answers as a switch, and its objects."""

    def __init__(self, directory: Path, port: int, objects: snmp_objects.SwitchObjects) -> None:
        self.directory, self.port, self.objects = directory, port, objects

    def write(self) -> None:
        """Write the objects, which the next answers contain."""
        self.objects.write(self.directory / "objects.txt")

    def write_switches(self, name: str = "leaf-07", **more: str | float) -> Path:
        """Write a switches file with this switch and its community; return its path."""
        credential = self.directory / "community.toml"
        credential.write_text(f'community = "{COMMUNITY}"\n')
        settings = {"address": f"127.0.0.1:{self.port}", "credential_file": str(credential)} | more
        lines = [f"{key} = {value!r}" for key, value in settings.items()]
        file = self.directory / "switches.toml"
        file.write_text(f"[{name}]\n" + "\n".join(lines) + "\n")
        return file


@contextmanager
def running(
    directory: Path, objects: snmp_objects.SwitchObjects, name: str = "leaf-07"
) -> Iterator[SwitchAgent]:
    """Run an snmpd, stopped by its own pid; skips if there is none."""
    program = shutil.which("snmpd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("snmpd is not installed: make servers")
    directory.mkdir(exist_ok=True)
    port = free_port()
    agent = SwitchAgent(directory, port, objects)
    agent.write()
    answer = f"{sys.executable} -I -S -u {snmp_objects.__file__} {directory / 'objects.txt'}"
    lines = [
        f"agentaddress udp:127.0.0.1:{port}", f"rocommunity {COMMUNITY} 127.0.0.1", "master no", f"sysName {name}",
        "sysDescr A switch of tests", f"createUser {USER} SHA-256 {PASSWORD} AES {PRIVACY_PASSWORD}", f"rouser {USER} priv",
        *(f"pass_persist .{root} {answer}" for root in objects.roots),
    ]  # fmt: skip
    (directory / "snmpd.conf").write_text("\n".join(lines) + "\n")
    environment = {
        "PATH": os.environ["PATH"],
        "SNMP_PERSISTENT_DIR": str(directory / "state"),
        "MIBS": "",
    }
    own = [] if snmp_objects.SYSTEM in objects.roots else [SYSTEM_MODULE]
    modules = ",".join((*own, MODULES))
    command = [program, "-f", "-C", "-c", "snmpd.conf", "-Lf", "snmpd.log", "-I", modules]
    process = subprocess.Popen(command, cwd=directory, env=environment)
    try:
        _await_answers(process, directory)
        yield agent
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _await_answers(process: subprocess.Popen[bytes], directory: Path) -> None:
    log, deadline = directory / "snmpd.log", time.monotonic() + START_SECONDS
    while "NET-SNMP version" not in (log.read_text() if log.exists() else ""):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)
