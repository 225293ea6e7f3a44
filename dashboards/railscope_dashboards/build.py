"""Writes the dashboards to `generated/`, or checks that the files there are up to date."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import click
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from railscope_dashboards import (
    audit,
    billing,
    cluster_overview,
    efficiency,
    health,
    incidents,
    jobs,
    links,
    node,
    pair,
    rails,
    self_monitoring,
    switches,
    tenant,
)

GENERATED = Path(__file__).parents[1] / "generated"
DASHBOARDS = {
    "cluster-overview": cluster_overview,
    "incidents": incidents,
    "rails": rails,
    "node": node,
    "pair": pair,
    "efficiency": efficiency,
    "health": health,
    "links": links,
    "switches": switches,
    "jobs": jobs,
    "tenant": tenant,
    "billing": billing,
    "audit": audit,
    "self-monitoring": self_monitoring,
}
"""The module of each dashboard by its file name."""


@cache
def dashboards() -> tuple[tuple[str, str], ...]:
    """Build every dashboard: its file name and its text."""
    encoder = JSONEncoder(indent=2, sort_keys=True)
    return tuple(
        (f"{name}.json", encoder.encode(module.build_dashboard()) + "\n")
        for name, module in DASHBOARDS.items()
    )


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail if a file would change.")
@click.option(
    "--to",
    "directory",
    default=GENERATED,
    type=click.Path(path_type=Path),
    help="Directory to write the dashboards to.",
)
def main(*, check: bool, directory: Path) -> None:
    """Write the Grafana dashboards."""
    stale = [name for name, text in dashboards() if not _is(directory / name, text)]
    for name, text in dashboards():
        if not check and name in stale:
            (directory / name).write_text(text)
            click.echo(f"written {directory / name}")
    if check and stale:
        click.echo(
            f"stale dashboards: {', '.join(stale)}; fix: python -m railscope_dashboards", err=True
        )
        sys.exit(1)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text
