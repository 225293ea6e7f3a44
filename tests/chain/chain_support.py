"""Real processes on loopback: our own programs, and the third-party servers of a deployment."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from support.forked_program import ForkedProgram

from bench.harness import free_port
from railscope.capture import write_capture
from railscope_collector.access.credentials import digest_token
from railscope_simulator import NodeSpec, capture_metadata, moments
from railscope_simulator.demo.process import Program

PATIENCE_SECONDS = 240.0


@cache
def _capture_files(spec: NodeSpec, seconds: int) -> dict[str, bytes]:
    """Return the files of the capture of a simulated node; most tests have the same nodes."""
    with TemporaryDirectory() as directory:
        capture = Path(directory, "capture")
        write_capture(capture, capture_metadata(spec, seconds), moments(spec, seconds))
        return {path.name: path.read_bytes() for path in capture.iterdir()}


@dataclass
class ProgramDirectory:
    """A directory with captures and tokens, and the programs that run in it."""

    directory: Path
    port: int = field(default_factory=free_port)
    programs: list[Program] = field(default_factory=list)
    scheme: str = "http"

    @property
    def url(self) -> str:
        """Return the URL of the collector."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def prepare(self, nodes: dict[str, str], seconds: int = 60) -> None:
        """Write captures of simulated nodes by name and scenario, and a token for each."""
        self.prepare_all(
            [
                NodeSpec(node=name, seed=seed, gpus=2, scenario=scenario)
                for seed, (name, scenario) in enumerate(nodes.items())
            ],
            seconds,
        )

    def prepare_all(self, specs: Iterable[NodeSpec], seconds: int) -> None:
        """Write captures of simulated nodes, and a token for each."""
        lines = []
        for spec in specs:
            capture = self.directory / spec.node
            capture.mkdir()
            for name, content in _capture_files(spec, seconds).items():
                (capture / name).write_bytes(content)
            lines.append(f'"{spec.node}" = "{digest_token("token-" + spec.node)}"\n')
        (self.directory / "tokens.toml").write_text("[nodes]\n" + "".join(lines))

    async def collector(self, *more: str, **environment: str) -> Program:
        """Start a collector and wait until it listens."""
        program = self._program(
            "collector",
            [
                "collector",
                "run",
                "--listen",
                f"127.0.0.1:{self.port}",
                "--state-directory",
                "collector",
                "--tokens-file",
                "tokens.toml",
                "--allow-anonymous-read",
                *more,
            ],
            {"RAILSCOPE_COLLECTOR_VIEW_REFRESH_SECONDS": "0.2", **environment},
        )
        return await self._start(program, "collector_started")

    async def agent(self, node: str, *more: str, path: str = "", **environment: str) -> Program:
        """Start an agent that replays a capture, and wait until it serves its metrics."""
        program = self._program(
            f"agent of {node}",
            [
                "agent",
                "run",
                "--node",
                node,
                "--listen",
                "127.0.0.1:0",
                "--collector",
                self.url + path,
                "--state-directory",
                f"state-{node}",
                "--replay",
                node,
                *more,
            ],
            {
                "RAILSCOPE_AGENT_COLLECTOR__TOKEN": f"token-{node}",
                "RAILSCOPE_AGENT_COLLECTOR__PUSH_SECONDS": "0.5",
                "RAILSCOPE_AGENT_COLLECTOR__MAX_RETRY_SECONDS": "0.5",
                **environment,
            },
        )
        return await self._start(program, "agent_started")

    @staticmethod
    def _program(name: str, arguments: list[str], environment: dict[str, str]) -> Program:
        """Return a program of this checkout, which is forked, or of the tree that PYTHONPATH names."""
        kind = Program if "PYTHONPATH" in environment else ForkedProgram
        return kind(name, arguments, {**os.environ, **environment})

    async def _start(self, program: Program, event: str) -> Program:
        self.programs.append(program)
        await program.start(self.directory)
        await program.find_logged(event)
        return program

    async def get(self, path: str) -> Any:
        """Return JSON from the collector."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def answers(self, path: str) -> bool:
        """True if the collector answers at this path."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status == 200

    async def stop(self) -> None:
        """Stop all programs."""
        for program in reversed(self.programs):
            await program.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ProgramDirectory]:
    """A site; its programs are stopped afterwards."""
    made = ProgramDirectory(tmp_path)
    yield made
    await made.stop()


@asynccontextmanager
async def debian_server(package: str, *command: str, directory: Path) -> AsyncIterator[None]:
    """Run a real server from a Debian package, stopped afterwards by its own pid."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: apt-get install {package}")
    with (directory / f"{package}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, cwd=directory
        )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
