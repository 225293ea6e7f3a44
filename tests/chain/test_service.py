"""Both services under systemd: ready, watchdog, reload, stop; and TLS on both ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import aiohttp
import pytest
from chain_support import ProgramDirectory
from support.certificates import self_signed
from support.waiting import wait_until

from railscope_simulator.demo.process import Program


class NotifySocket:
    """The notification socket of sd_notify(3), and its messages.

    They are read as they arrive: its queue is short, and what it has no space for is lost.
    """

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        self.address = str(directory / "notify")
        self._socket.bind(self.address)
        self.states: list[str] = []

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _receive(self) -> None:
        self.states.append(self._socket.recv(4096).decode())

    async def wait_for(self, state: str) -> None:
        """Wait for a state."""

        async def is_received() -> bool:
            return any(state in message for message in self.states)

        await wait_until(is_received, f"systemd received {state}")

    def forget(self) -> None:
        """Discard the messages so far."""
        self.states.clear()

    @property
    def environment(self) -> dict[str, str]:
        """The environment that systemd sets for a service with a watchdog of one second."""
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": "1000000"}


@pytest.fixture
async def systemd(tmp_path: Path) -> AsyncIterator[NotifySocket]:
    """Run a listener in place of systemd."""
    async with NotifySocket(tmp_path) as listener:
        yield listener


async def lifecycle(program: Program, systemd: NotifySocket, config: Path, good: str) -> None:
    """Ready, watchdog, a rejected reload, a successful one, and the end."""
    await systemd.wait_for("READY=1")
    await systemd.wait_for("WATCHDOG=1")
    config.write_text("nonsense = 1\n")
    program.signal(signal.SIGHUP)
    line = await program.find_logged("reload_rejected")
    assert "unknown key 'nonsense'" in line.string
    systemd.forget()
    config.write_text(good)
    program.signal(signal.SIGHUP)
    await systemd.wait_for("RELOADING=1")
    await systemd.wait_for("READY=1")
    await program.stop()
    await systemd.wait_for("STOPPING=1")
    assert await program.wait_for_end() == 0


async def test_the_collector_as_a_service(
    site: ProgramDirectory, tmp_path: Path, systemd: NotifySocket
):
    site.prepare({"n1": "idle"}, seconds=2)
    config = tmp_path / "collector.toml"
    config.write_text('log_level = "info"\n')
    program = await site.collector("--config", str(config), **systemd.environment)
    await lifecycle(program, systemd, config, "stale_seconds = 7.0\n")


async def test_the_agent_as_a_service(
    site: ProgramDirectory, tmp_path: Path, systemd: NotifySocket
):
    site.prepare({"n1": "idle"}, seconds=2)
    config = tmp_path / "agent.toml"
    config.write_text('log_level = "info"\n')
    await site.collector()
    program = await site.agent("n1", "--config", str(config), **systemd.environment)
    await lifecycle(program, systemd, config, "[period_seconds]\nhost = 2.0\n")


async def test_a_reload_that_cannot_work_leaves_the_service_as_it_was(
    site: ProgramDirectory, tmp_path: Path
):
    site.prepare({"n1": "training"})
    config = tmp_path / "collector.toml"
    config.write_text("")
    collector = await site.collector("--config", str(config))
    tokens = tmp_path / "tokens.toml"
    kept = tokens.read_text()
    tokens.write_text("no toml")
    collector.signal(signal.SIGHUP)
    line = await collector.find_logged("reload_rejected.*tokens_file")
    tokens.write_text(kept)
    config.write_text('[tls]\ncertificate_file = "nowhere.pem"\n')
    collector.signal(signal.SIGHUP)
    line = await collector.find_logged("reload_rejected.*nowhere.pem")
    assert "the previous settings remain in use" in line.string
    assert (await site.get("/api/v1/nodes"))["rows"] == []
    agent = await site.agent("n1")
    await agent.find_logged("collector_connected")


async def test_tokens_are_read_as_soon_as_they_change(site: ProgramDirectory, tmp_path: Path):
    site.prepare({"n1": "training"})
    tokens = tmp_path / "tokens.toml"
    kept = tokens.read_text()
    tokens.write_text("[nodes]\n")
    await site.collector()
    agent = await site.agent("n1")
    line = await agent.find_logged("collector_unreachable")
    assert "missing or wrong token; fix: compare collector.token_file" in line.string
    tokens.write_text(kept)
    await agent.find_logged("collector_connected")
    await agent.stop()
    lost = await site.agent("n1", path="/typo")
    line = await lost.find_logged("collector_unreachable")
    assert "unknown path; fix: check that collector.url" in line.string


async def test_tls_on_both_ends(site: ProgramDirectory, tmp_path: Path):
    site.prepare({"n1": "training"})
    certificate_file, key_file = self_signed(tmp_path)
    tls = {"certificate_file": str(certificate_file), "key_file": str(key_file)}
    await site.collector(
        **{f"RAILSCOPE_COLLECTOR_TLS__{name.upper()}": value for name, value in tls.items()}
    )
    site.scheme = "https"
    trusting = {"RAILSCOPE_AGENT_COLLECTOR__CA_FILE": str(certificate_file)}
    page_tls = {f"RAILSCOPE_AGENT_TLS__{name.upper()}": value for name, value in tls.items()}
    doubtful = await site.agent("n1")
    line = await doubtful.find_logged("collector_unreachable")
    assert "untrusted certificate of the collector" in line.string
    assert "set collector.ca_file" in line.string
    await doubtful.stop()
    agent = await site.agent("n1", **trusting, **page_tls, RAILSCOPE_AGENT_METRICS_TOKEN="secret")  # noqa: S106
    await agent.find_logged("collector_connected")
    page = (await agent.find_logged(r"agent_started .*address=(\S+:\d+)"))[1]
    context = ssl.create_default_context(cafile=str(certificate_file))
    for token, expected in (("wrong", 401), ("secret", 200)):
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"https://{page}/metrics", ssl=context) as response,
        ):
            assert response.status == expected
