"""Writes the boards to `generated/`, or checks that what is there is what would be written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import cluster_overview

GENERATED = Path(__file__).parent / "generated"


def boards() -> Iterator[tuple[str, str]]:
    """Build every board: its file name and its text."""
    encoder = JSONEncoder(indent=2, sort_keys=True)
    for name, board in (("cluster-overview.json", cluster_overview.board),):
        yield name, encoder.encode(board()) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail if a file would change.")
@click.option("--to", "folder", default=GENERATED, type=click.Path(path_type=Path), help="Folder.")
def main(*, check: bool, folder: Path) -> None:
    """Write the Grafana boards."""
    stale = [name for name, text in boards() if not _is(folder / name, text)]
    for name, text in boards():
        if not check and name in stale:
            (folder / name).write_text(text)
            click.echo(f"written {folder / name}")
    if check and stale:
        click.echo(f"not as generated: {', '.join(stale)}; run python -m dashboards", err=True)
        sys.exit(1)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text
