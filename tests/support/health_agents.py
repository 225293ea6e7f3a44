"""An agent that has read a capture to its end, and answers on its socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cases import CASES
from support.claim_requests import ask, serving

from railscope.capture import read_capture
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings, TenancySettings
from railscope_agent.endpoint.claims_endpoint import ClaimsEndpoint
from railscope_agent.service import Agent
from railscope_agent.sources.tenancy import ClaimSource

ROOT = Path(__file__).parents[2]


class ReadCapture:
    """An agent at the end of a capture, with its socket in a directory."""

    def __init__(self, name: str, directory: Path) -> None:
        walk = CaptureWalk(read_capture(CASES / name))
        self.agent = Agent(AgentSettings(), walk.host, walk.host.node)
        tenancy = next(s for s in self.agent.sampler.sources if isinstance(s, ClaimSource))
        directory.mkdir(exist_ok=True)
        tenancy.remember(directory, walk.host.boot_id)
        asyncio.run(walk.read(self.agent))
        self.endpoint = ClaimsEndpoint(
            TenancySettings(), directory, tenancy, walk.host.clock, self.agent.health
        )
        self.path = directory / "claims.sock"

    def claim(self, job: str, *gpus: str) -> None:
        """Start a claim of a Slurm job."""
        body = {"id": f"slurm-{job}", "gpus": gpus, "owner": "me", "workload": f"slurm:{job}"}
        status, answer = ask(self.path, "POST", "/v1/claims", body)
        assert status == 200, answer


@contextmanager
def answering(name: str, directory: Path) -> Iterator[ReadCapture]:
    """Serve the agent of a capture."""
    served = ReadCapture(name, directory)
    with serving(served):
        yield served


def install_scripts(directory: Path, socket: Path) -> Path:
    """Install the shipped files with settings for the agent of a socket; return the directory of the scripts."""
    prefix = directory / "opt"
    directories = [prefix, *(directory / name for name in ("etc", "units", "links"))]
    subprocess.run([ROOT / "deploy/install_files.sh", *directories], check=True)
    write_settings(directory, socket)
    program = prefix / "bin/railscope"
    program.parent.mkdir()
    variables = f"PYTHONPATH={ROOT} RAILSCOPE_CONFIGURATION={directory}/etc"
    program.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} -P -m railscope "$@"\n')
    program.chmod(0o755)
    return prefix / "share/railscope"


def write_settings(directory: Path, socket: Path) -> None:
    """Write the settings of the installed scripts."""
    (directory / "etc/agent.toml").write_text(f'[tenancy]\nsocket = "{socket}"\n')
