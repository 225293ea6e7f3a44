"""Two collectors, each with its own state: agents continue at the other one, and lose nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from chain_support import ProgramDirectory
from support.waiting import wait_until
from test_crash import frames_of_runs, identities

from railscope_simulator.demo.process import Program

CHANGED = r"collector_changed from_url=\S+ to_url=(\S+) reason={}"
MORE = 20
"""Frames that are waited for."""


class CollectorPair:
    """Two collectors in the directory of a site; the first one is that of the site."""

    def __init__(self, site: ProgramDirectory, ledger: str = "") -> None:
        self.ledger = {"RAILSCOPE_COLLECTOR_LEDGER__URL": ledger} if ledger else {}
        self.first = site
        self.second = ProgramDirectory(site.directory, programs=site.programs)

    async def start_first(self, **environment: str) -> Program:
        return await self.first.collector(**self.ledger, **environment)

    async def start_second(self, **environment: str) -> Program:
        return await self.second.collector(
            "--state-directory", "other", **self.ledger, **environment
        )

    async def agent(self, node: str, **environment: str) -> Program:
        """Start an agent that tries the first collector first."""
        settings = {
            "COLLECTOR__MAX_FAILURES": "2",
            "WITNESS__PERIOD_SECONDS": "0.2",
        } | environment
        given = {f"RAILSCOPE_AGENT_{name}": value for name, value in settings.items()}
        return await self.first.agent(node, "--collector", self.second.url, **given)

    def frames(self) -> tuple[set[object], set[object]]:
        """Return the frames in both frame logs. No log has one twice."""
        found = [identities(self.first, "collector"), identities(self.first, "other")]
        assert all(count == 1 for log in found for count in log.values())
        return set(found[0]), set(found[1])

    async def receives(self, log: int) -> None:
        """Wait until a collector has received more frames."""
        goal = len(self.frames()[log]) + MORE
        await wait_until(
            lambda: _holds(lambda: len(self.frames()[log]) >= goal), "it receives frames"
        )


async def missing_frames(site: ProgramDirectory) -> float:
    """Return the missing frames that a collector states."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{site.url}/metrics") as response,
    ):
        text = await response.text()
    found = re.search(r"^railscope_collector_missing_frames (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


async def _holds(condition: Callable[[], bool]) -> bool:
    return condition()


@pytest.mark.journey
async def test_frames_continue_at_the_other_collector(site: ProgramDirectory) -> None:
    site.prepare({"n1": "training", "n2": "incast"})
    pair = CollectorPair(site)
    first = await pair.start_first()
    second = await pair.start_second(RAILSCOPE_COLLECTOR_DRAIN_SECONDS="3600")
    agents = [await pair.agent(node) for node in ("n1", "n2")]
    await pair.receives(0)
    assert pair.frames()[1] == set(), "frames are sent to one collector only"

    first.kill()
    await first.wait_for_end()
    for agent in agents:
        assert (await agent.find_logged(CHANGED.format("failures")))[1] == pair.second.url
    await pair.receives(1)

    first = await pair.start_first()
    second.signal(signal.SIGTERM)
    for agent in agents:
        assert (await agent.find_logged(CHANGED.format("draining")))[1] == pair.first.url
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{pair.second.url}/-/ready") as response,
    ):
        assert (response.status, await response.text()) == (503, "not ready: draining\n")
    await pair.receives(0)
    assert await missing_frames(pair.second) == 0
    received, elsewhere = pair.frames()
    missing = await missing_frames(pair.first)
    assert 0 < missing <= len(elsewhere - received), "without a group, each counts for itself"
    second.signal(signal.SIGTERM)
    assert await second.wait_for_end() == 0, "a second signal ends it at once"

    for agent in agents:
        await agent.stop()
        assert agent.find(r"agent_stopped .*dropped_frames=0 waiting_envelopes=0")
        assert not agent.find("checkpoint_conflict_detected")
    await first.stop()
    received = set.union(*pair.frames())
    for run, sequences in frames_of_runs(received).items():
        assert sequences == set(range(1, max(sequences) + 1)), f"a hole in {run}"


@pytest.mark.thorough
async def test_a_collector_that_hangs_is_left(site: ProgramDirectory, tmp_path: Path) -> None:
    site.prepare({"n1": "training"})
    pair = CollectorPair(site)
    first = await pair.start_first()
    await pair.start_second()
    agent = await pair.agent("n1", COLLECTOR__FAILOVER_SECONDS="1")
    witness = tmp_path / "state-n1" / "witness"
    await wait_until(
        lambda: _holds(lambda: len(list(witness.glob("log-*/held"))) == len("ab")),
        "the agent has a checkpoint of each collector's audit log",
    )
    first.signal(signal.SIGSTOP)
    try:
        await agent.find_logged(CHANGED.format("unacknowledged"))
        await pair.receives(1)
    finally:
        first.signal(signal.SIGCONT)
    await agent.stop()
    assert not agent.find("checkpoint_conflict_detected")
    for run, sequences in frames_of_runs(set.union(*pair.frames())).items():
        assert sequences == set(range(1, max(sequences) + 1)), f"a hole in {run}"
