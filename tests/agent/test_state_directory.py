"""The state directory of an agent: one process at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.collector import PATIENCE_SECONDS
from support.machine import FakeHost
from support.sampling import lanes_of

from railscope.durable_files import is_locked
from railscope.settings import SettingsError
from railscope_agent.config import AgentSettings, CollectorLink, TenancySettings
from railscope_agent.service import Agent

UNREACHABLE = "http://127.0.0.1:1"


def agent_in(
    state: Path, socket: Path, url: str = UNREACHABLE, host: FakeHost | None = None
) -> Agent:
    link, tenancy = CollectorLink(url=url, token="secret"), TenancySettings(socket=str(socket))  # noqa: S106 - no secret
    settings = AgentSettings(
        listen="127.0.0.1:0", state_directory=str(state), collector=link, tenancy=tenancy
    )
    return Agent(settings, host or FakeHost(), "n1")


async def test_a_second_agent_touches_nothing_in_a_state_directory(tmp_path: Path) -> None:
    """Also with a claims socket of its own: both would write the same envelope numbers."""
    state, host = tmp_path / "state", FakeHost()
    first = agent_in(state, tmp_path / "first", host=host)
    task = asyncio.create_task(first.run())
    await host.clock.asleep(lanes_of(first.sampler.sources))
    (state / "spool").mkdir(exist_ok=True)
    being_written = state / "spool" / "000000000001.envelope.0123abcd.partial"
    being_written.write_bytes(b"")
    try:
        with pytest.raises(SettingsError) as raised:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await agent_in(state, tmp_path / "second").run()
        assert being_written.exists()
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert str(raised.value) == (
        f"state_directory {state} is in use by another agent; fix: stop it, or set another directory"
    )
    assert not is_locked(state), "a stopped agent releases it, so that a reload can start the next"


async def test_an_agent_without_a_collector_needs_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = tmp_path / "file" / "state"
    with pytest.raises(SettingsError, match=f"cannot use state_directory {unusable}: Not a"):
        await agent_in(unusable, tmp_path / "claims").run()
    host = FakeHost()
    agent = agent_in(unusable, tmp_path / "claims", url="", host=host)
    task = asyncio.create_task(agent.run())
    try:
        await host.clock.asleep(lanes_of(agent.sampler.sources))
    finally:
        task.cancel()
        await asyncio.wait({task})
