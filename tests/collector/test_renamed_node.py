"""A renamed node, or one cloned from the disk of another: envelopes of the former name are in its spool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from running_collector import run_collector, settings_in
from structlog.testing import capture_logs
from support.reading import ORIGIN
from support.shipping import run_shipper, waiting

from railscope_agent.config import CollectorLink

FORMER, PRESENT = replace(ORIGIN, node="n2", run="run-0"), replace(ORIGIN, node="n1")


async def spool_former(directory: Path) -> None:
    """Spool two envelopes under the former name."""
    async with run_shipper(directory, CollectorLink(url="http://127.0.0.1:1"), FORMER) as run:
        await run.flush(2)
        await run.flush(2)
    assert waiting(directory) == 2


async def test_a_renamed_node_with_its_new_credential_delivers_what_is_its_own(
    tmp_path: Path,
) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    await spool_former(agent)
    async with run_collector(settings_in(tmp_path)) as running:
        link = CollectorLink(url=running.url, token="token-n1")  # noqa: S106 - a test's token
        with capture_logs() as logs:
            async with run_shipper(agent, link, PRESENT) as run:
                await run.flush(3)
                await run.shipped(3)
        assert (run.stats.dropped_frames["rejected"], waiting(agent)) == (4, 0)
        assert running.collector.core.counts.rejected["node"] == 1, "one request, not one each"
        assert set(running.collector.core.fleet.nodes) == {"n1"}
    assert [entry["event"] for entry in logs].count("spool_rejected") == 1


@pytest.mark.parametrize("token", ["token-n2", "token-unknown"])
async def test_a_wrong_credential_drops_nothing(tmp_path: Path, token: str) -> None:
    """Tokens of the former name and of another node, one that the collector does not have yet, and one for reading."""
    agent = tmp_path / "agent"
    agent.mkdir()
    await spool_former(agent)
    async with run_collector(settings_in(tmp_path)) as running:
        link = CollectorLink(url=running.url, token=token)
        async with run_shipper(agent, link, PRESENT) as run:
            await run.flush(3)
            for _ in range(2):
                await run.failed()
                run.retry()
        assert (waiting(agent), sum(run.stats.dropped_frames.values())) == (3, 0)
