"""`python -m tests.failover.child PARENT SHIFT_NS collector CONFIG`, or `... nodes CONFIG SCENARIO DIRECTORY`.

A collector, or the agents of a simulated cluster, with a shifted wall clock: a UTC day ends within minutes.
`... witness CONFIG NODE DIRECTORY` is the witness of one agent for the audit logs of all collectors.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from railscope import log_output, service, settings
from railscope.child_process import end_with_parent
from railscope_agent.config import PREFIX, AgentSettings
from railscope_agent.host.live_clock import LiveClock
from railscope_agent.sampling.shipping_stats import AuditLogState
from railscope_agent.shipping import collector_link
from railscope_agent.witness import audit_log_client, audit_witness, witness_store
from railscope_collector.commands import load_settings
from railscope_collector.service import Collector
from railscope_simulator.cluster import scenario as scenarios, shipped_nodes


def collect(shift_ns: int, config: Path) -> service.Serve:
    """Return a collector."""
    current = load_settings(config)
    return Collector(current, wall_ns=lambda: time.time_ns() + shift_ns).run


def ship(shift_ns: int, config: Path, scenario: Path, directory: Path) -> service.Serve:
    """Return the agents of a simulated cluster."""
    agents = settings.load(AgentSettings, file=config, prefix=PREFIX)
    clock = shipped_nodes.NodeClock(LiveClock(), 0, shift_ns)
    cluster = shipped_nodes.ShippedCluster(
        scenarios.read_scenario(scenario), directory, agents, is_real_time=True, clock=clock
    )
    return cluster.run


def witness(shift_ns: int, config: Path, name: Path, directory: Path) -> service.Serve:
    """Return the witness of a node."""
    agents, node = settings.load(AgentSettings, file=config, prefix=PREFIX), name.name
    clock = shipped_nodes.NodeClock(LiveClock(), 0, shift_ns)
    links = collector_link.collector_links(shipped_nodes.link_of(agents.collector, node))
    witnesses = [
        audit_witness.AuditWitness(
            agents.witness,
            node,
            audit_log_client.AuditLogClient(link),
            witness_store.WitnessStore.for_collector(directory, link.url, is_only=False),
            clock,
            [],
            AuditLogState(),
            link.url,
        )
        for link in links
    ]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for each in witnesses:
                group.create_task(each.run())

    return run


PROGRAMS: dict[str, Callable[..., service.Serve]] = {
    "collector": collect,
    "nodes": ship,
    "witness": witness,
}


def main(arguments: list[str]) -> None:
    """Run until the end, or until stopped."""
    parent, shift_ns, program, *paths = arguments
    end_with_parent(int(parent))
    log_output.configure_logs("info")
    serve = PROGRAMS[program](int(shift_ns), *map(Path, paths))
    asyncio.run(service.supervise(lambda: serve))


if __name__ == "__main__":
    main(sys.argv[1:])
