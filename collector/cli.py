"""The command `railscope collector` and what is below it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from collector import tokens
from collector.config import PREFIX, CollectorSettings
from collector.service import Collector
from railscope import logs, settings
from railscope.service import Serve, supervise

_config = click.option(
    "--config", "config", type=click.Path(dir_okay=False, path_type=Path), help="Settings (TOML)."
)


@click.group()
def collector() -> None:
    """Turn frames of all nodes into cluster, rail and tenant views."""


@collector.command()
@_config
@click.option("--listen", help="Address and port.")
@click.option("--state-directory", help="Where the frame log lies.")
@click.option("--tokens-file", help="Tokens of nodes and readers.")
@click.option("--claims-file", help="Who holds which GPU or node.")
@click.option("--open-reading/--no-open-reading", default=None, help="Read without a token.")
def run(config: Path | None, **flags: Any) -> None:
    """Take frames in and serve the views until stopped."""

    def read() -> CollectorSettings:
        return settings.load(CollectorSettings, file=config, prefix=PREFIX, flags=flags)

    def load() -> Serve:
        current = read()
        Collector(current)

        async def serve() -> None:
            logs.configure(current.log_level)
            await Collector(current).run()

        return serve

    logs.configure(read().log_level)
    asyncio.run(supervise(load))


@collector.command()
@click.option("--reader", is_flag=True, help="For one who reads /metrics and the API.")
@click.argument("name")
def token(reader: bool, name: str) -> None:  # noqa: FBT001 - a flag
    """Make a token for a node (or reader) NAME, and the line for the tokens file."""
    fresh = tokens.new_token()
    click.echo(f"token (give it to {name} only): {fresh}")
    click.echo(f"line for the tokens file, section [{'readers' if reader else 'nodes'}]:")
    click.echo(f'"{name}" = "{tokens.digest(fresh)}"')


@collector.command(name="sample-config")
def sample_config() -> None:
    """Print a commented settings file with every setting at its default."""
    text = settings.sample(CollectorSettings, "Settings of the Railscope collector.")
    click.echo(text, nl=False)
