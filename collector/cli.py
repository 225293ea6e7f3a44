"""The command `railscope collector` and its subcommands."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import click
import structlog

from collector.commands import administration
from collector.service import Collector
from railscope import service

log = structlog.get_logger(__name__)


@click.group()
def collector() -> None:
    """Receive frames of all nodes and compute cluster, rail and tenant views."""


@collector.command()
@administration.config_option
@click.option("--listen", help="Address and port.")
@click.option("--state-directory", help="Directory of the frame log and other state.")
@click.option("--tokens-file", help="Tokens and certificates with their access roles (TOML).")
@click.option("--claims-file", help="Claims of tenants on GPUs and nodes (CSV).")
@click.option(
    "--allow-anonymous-read/--no-allow-anonymous-read",
    default=None,
    help="Allow unauthenticated requests to read everything that operators may read.",
)
def run(config: Path | None, **flags: Any) -> None:
    """Receive frames and serve the views until stopped."""
    running: list[Collector] = []

    def load() -> service.Serve:
        current = administration.load_settings(config, flags)
        Collector(current)

        async def serve() -> None:
            service.configure_logs(current.log_level)
            running[:] = [Collector(current, reload=_reload)]
            await running[0].run()

        return serve

    service.configure_logs(administration.load_settings(config, flags).log_level)
    asyncio.run(service.supervise(load, lambda: _drain(running[0]) if running else 0.0))


def _drain(running: Collector) -> float:
    """Accept no more frames; return the seconds until the collector is stopped."""
    drain_seconds = running.settings.drain_seconds
    if drain_seconds:
        running.core.is_draining = True
        log.info("drain_started", drain_seconds=drain_seconds)
    return drain_seconds


def _reload() -> None:
    """Make `supervise` restart the collector in this process."""
    os.kill(os.getpid(), signal.SIGHUP)


for _command in administration.COMMANDS:
    collector.add_command(_command)
