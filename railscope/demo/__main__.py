"""`python -m railscope.demo --seconds N`; 0 runs until stopped."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from railscope.demo.cluster import Cluster, Node
from railscope.demo.table import tables
from railscope.demo.verdict import verdict

REFRESH_SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"
_SERVERS: dict[str, dict[str, Any]] = {
    "gpu-node-1": {"scenario": "training", "scheduler": "slurm"},
    "gpu-node-2": {"scenario": "incast", "scheduler": "kubernetes", "stray": True},
    "gpu-node-3": {"scenario": "slow_receiver", "scheduler": "kubernetes"},
    "gpu-node-4": {"scenario": "thermal", "scheduler": "slurm"},
}


@click.command()
@click.option("--seconds", type=click.IntRange(min=0), default=0, help="0 runs until stopped.")
@click.option("--capture-seconds", type=click.IntRange(min=10), default=240, show_default=True,
              help="How much of each server is simulated; the replay starts over at its end.")  # fmt: skip
def main(seconds: int, capture_seconds: int) -> None:
    """Run the demo; with --seconds, leave with 0 only if all went well."""
    wanted = seconds + 10 if seconds else capture_seconds
    nodes = [Node(name, seconds=wanted, **how) for name, how in _SERVERS.items()]
    with tempfile.TemporaryDirectory(prefix="railscope-demo-") as folder:
        try:
            good = asyncio.run(_run(Cluster(Path(folder), nodes), seconds))
        except KeyboardInterrupt:
            good = True
    sys.exit(0 if good else 1)


async def _run(cluster: Cluster, seconds: int) -> bool:
    click.echo(f"Simulating {len(cluster.nodes)} servers with 8 GPUs and 8 rails each ...")
    await asyncio.to_thread(cluster.prepare)
    async with cluster:
        click.echo(cluster.where_to_look())
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds if seconds else None
        while end is None or loop.time() < end:
            await asyncio.sleep(REFRESH_SECONDS)
            cluster.check_alive()
            text = tables(await cluster.views())
            click.echo((CLEAR if sys.stdout.isatty() else "\n") + text)
            if sys.stdout.isatty():
                click.echo(cluster.where_to_look())
        shipped = await cluster.stop_agents()
        good, report = verdict(cluster.node_names, shipped, await cluster.settled_views())
        click.echo("\n" + report)
        click.echo("\nAUDIT LOG")
        return await cluster.check_audit_log() and good


if __name__ == "__main__":
    main()
