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
from railscope.demo.watchers import Watchers, WatchersError

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
@click.option("--watchers", "folder", type=click.Path(path_type=Path, resolve_path=True),
              help="Leave a folder from which Prometheus, Alertmanager and Grafana can be started.")  # fmt: skip
def main(seconds: int, capture_seconds: int, folder: Path | None) -> None:
    """Run the demo; with --seconds, leave with 0 only if all went well."""
    wanted = seconds + 10 if seconds else capture_seconds
    nodes = [Node(name, seconds=wanted, **how) for name, how in _SERVERS.items()]
    watchers = Watchers(folder) if folder else None
    with tempfile.TemporaryDirectory(prefix="railscope-demo-") as site:
        try:
            good = asyncio.run(_run(Cluster(Path(site), nodes), seconds, watchers))
        except KeyboardInterrupt:
            good = True
        except WatchersError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if good else 1)


async def _run(cluster: Cluster, seconds: int, watchers: Watchers | None) -> bool:
    if watchers:
        await asyncio.to_thread(watchers.write)
    click.echo(f"Simulating {len(cluster.nodes)} servers with 8 GPUs and 8 rails each ...")
    await asyncio.to_thread(cluster.prepare)
    async with cluster:
        where = cluster.where_to_look()
        if watchers:
            await asyncio.to_thread(watchers.point_at, cluster.collector, cluster.pages)
            where += f"\n\n{watchers.how_to_start()}"
        click.echo(where)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds if seconds else None
        while end is None or loop.time() < end:
            await asyncio.sleep(REFRESH_SECONDS)
            cluster.check_alive()
            text = tables(await cluster.views())
            click.echo((CLEAR if sys.stdout.isatty() else "\n") + text)
            if sys.stdout.isatty():
                click.echo(where)
        shipped = await cluster.stop_agents()
        good, report = verdict(cluster.node_names, shipped, await cluster.settled_views())
        click.echo("\n" + report)
        click.echo("\nAUDIT LOG")
        good = await cluster.check_audit_log() and good
    if watchers:
        click.echo(
            f"\n{watchers.how_to_start()}\nThey show the demo whenever it runs: `make demo`."
        )
    return good


if __name__ == "__main__":
    main()
