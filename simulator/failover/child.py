"""`python -m simulator.failover.child PARENT SHIFT_NS collector CONFIG`, or `... nodes CONFIG SCENARIO DIRECTORY`.

A collector, or the agents of a simulated cluster, with a shifted wall clock: a UTC day ends within minutes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from agent.config import PREFIX, AgentSettings
from agent.host.live_host import LiveClock
from collector.commands.administration import load_settings
from collector.service import Collector
from railscope import service, settings
from simulator.cluster.scenario import read_scenario
from simulator.cluster.shipped_nodes import NodeClock, ShippedCluster
from simulator.demo.child import end_with_parent


def collect(shift_ns: int, config: Path) -> service.Serve:
    """Return a collector."""
    current = load_settings(config)
    return Collector(current, wall_ns=lambda: time.time_ns() + shift_ns).run


def ship(shift_ns: int, config: Path, scenario: Path, directory: Path) -> service.Serve:
    """Return the agents of a simulated cluster."""
    agents = settings.load(AgentSettings, file=config, prefix=PREFIX)
    clock = NodeClock(LiveClock(), 0, shift_ns)
    cluster = ShippedCluster(
        read_scenario(scenario), directory, agents, is_real_time=True, clock=clock
    )
    return cluster.run


def main(arguments: list[str]) -> None:
    """Run until the end, or until stopped."""
    parent, shift_ns, program, *paths = arguments
    end_with_parent(int(parent))
    service.configure_logs("info")
    make = collect if program == "collector" else ship
    serve = make(int(shift_ns), *map(Path, paths))
    asyncio.run(service.supervise(lambda: serve))


if __name__ == "__main__":
    main(sys.argv[1:])
