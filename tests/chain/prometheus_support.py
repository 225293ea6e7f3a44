"""A real Prometheus, and its queries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from chain_support import debian_server
from support.waiting import wait_until

from bench.harness import free_port


@dataclass(frozen=True)
class RunningPrometheus:
    """The API of a running Prometheus."""

    session: aiohttp.ClientSession
    url: str

    async def is_ready(self) -> bool:
        """True once it answers queries."""
        try:
            async with self.session.get("/-/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        async with self.session.get(f"/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]


@asynccontextmanager
async def running_prometheus(
    directory: Path, config: Mapping[str, Any], *options: str, name: str = "prometheus"
) -> AsyncIterator[RunningPrometheus]:
    """Run a Prometheus with this configuration, until it is stopped by its own pid."""
    (directory / f"{name}.yml").write_text(yaml.safe_dump(dict(config)))
    address = f"127.0.0.1:{free_port()}"
    command = ("prometheus", f"--config.file={name}.yml", f"--web.listen-address={address}", *options)  # fmt: skip
    async with (
        debian_server("prometheus", *command, directory=directory),
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        running = RunningPrometheus(session, f"http://{address}")
        await wait_until(running.is_ready, "Prometheus answers")
        yield running
