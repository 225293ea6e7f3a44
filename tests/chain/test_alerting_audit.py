"""From an audit log modified outside the collector to a message."""

from __future__ import annotations

import asyncio
import shutil

import aiohttp
from alerting_support import metrics_addresses, run_alerting
from chain_support import ProgramDirectory, wait_until

NODES = ("n1", "n2")
TAMPERED = [
    *(
        {
            "alertname": "RailscopeAuditCheckpointConflict", "severity": "critical",
            "reported_by": "agent", "node": node, "job": "railscope-agent",
        }
        for node in NODES
    ),
    {
        "alertname": "RailscopeAuditCheckpointConflict", "severity": "critical",
        "reported_by": "collector", "job": "railscope-collector",
    },
]  # fmt: skip


async def page(site: ProgramDirectory) -> str:
    """Return the collector's metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/metrics") as answer:
        return await answer.text()


async def test_a_restored_audit_log_is_reported_by_witnesses_with_later_checkpoints(
    site: ProgramDirectory,
) -> None:
    """The collector is stopped, its log replaced by an older copy, and started again."""
    site.prepare(dict.fromkeys(NODES, "training"))
    directory, backup = site.directory / "collector" / "audit", site.directory / "backup"
    often = {"RAILSCOPE_AGENT_WITNESS__PERIOD_SECONDS": "0.3"}

    async def vouched() -> bool:
        return f"railscope_audit_witnesses {len(NODES)}\n" in await page(site)

    def size(checkpoint: str) -> int:
        return int(checkpoint.splitlines()[1])

    collector = await site.collector()
    started = await asyncio.gather(*(site.agent(node, **often) for node in NODES))
    agents = dict(zip(NODES, started, strict=True))
    await wait_until(vouched, "the agents vouch for the log")
    await collector.stop()
    shutil.copytree(directory, backup)
    before = size((backup / "checkpoint").read_text())
    collector = await site.collector()
    held = [site.directory / f"state-{node}" / "witness" / "held" for node in NODES]

    async def ahead() -> bool:
        return all(size(path.read_text()) > before for path in held)

    await wait_until(ahead, "the agents hold what comes after the copy")
    async with run_alerting(site, await metrics_addresses(agents)) as watch:
        await watch.wait_for_alerts([{"alertname": "RailscopeDeadMansSwitch"}])
        assert not any(map(watch.hook.has, TAMPERED))
        await collector.stop()
        shutil.rmtree(directory)
        shutil.copytree(backup, directory)
        await site.collector()
        await watch.wait_for_alerts(TAMPERED)


async def test_a_record_changed_in_place_is_reported(site: ProgramDirectory) -> None:
    """The collector verifies its own log again, and one record differs from the signed one."""
    site.prepare({"n1": "training"})
    collector = await site.collector(RAILSCOPE_COLLECTOR_AUDIT__VERIFICATION_PERIOD_SECONDS="0.5")
    agent = await site.agent("n1")
    bundles = site.directory / "collector" / "audit" / "tile" / "entries" / "000.p"

    async def whole() -> bool:
        return "railscope_audit_verified 1\n" in await page(site)

    altered = {
        "alertname": "RailscopeAuditNotVerified", "severity": "critical", "problem": "altered",
        "job": "railscope-collector",
    }  # fmt: skip
    await wait_until(whole, "the collector finds its log whole")
    async with run_alerting(site, await metrics_addresses({"n1": agent})) as watch:
        await watch.wait_for_alerts([{"alertname": "RailscopeDeadMansSwitch"}])
        assert not watch.hook.has(altered)
        for bundle in bundles.iterdir():
            raw = bundle.read_bytes()
            bundle.write_bytes(raw.replace(b'"kind":"collector"', b'"kind":"operator!"'))
        await watch.wait_for_alerts([altered])
    await collector.find_logged("audit_verification_failed")
