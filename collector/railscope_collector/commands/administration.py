"""Commands of `railscope collector` that run the service, and those about its settings and its state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
import structlog

from railscope import convert_errors, log_output, service, settings
from railscope_collector import clock, tables
from railscope_collector.audit import ledger_check
from railscope_collector.commands import collector_check, config_option, load_settings
from railscope_collector.config import CollectorSettings
from railscope_collector.ledger import database, database_copy, database_location
from railscope_collector.service import Collector

log = structlog.get_logger(__name__)


@click.command()
@config_option
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
        current = load_settings(config, flags)
        # Checks all settings: a reload with invalid ones must not end the running collector.
        Collector(current)

        async def serve() -> None:
            log_output.configure_logs(current.log_level)
            running[:] = [Collector(current, reload=_reload)]
            await running[0].run()

        return serve

    log_output.configure_logs(load_settings(config, flags).log_level)
    asyncio.run(service.supervise(load, lambda: _drain(running[0]) if running else 0.0))


def _drain(running: Collector) -> float:
    """Accept no more frames; return the seconds until the collector is stopped."""
    drain_seconds = running.settings.drain_seconds
    if drain_seconds:
        running.role.drain()
        log.info("drain_started", drain_seconds=drain_seconds)
    return drain_seconds


def _reload() -> None:
    """Make `supervise` restart the collector in this process."""
    os.kill(os.getpid(), signal.SIGHUP)


@click.command(name="check")
@config_option
def check_command(config: Path | None) -> None:
    """Validate settings, files, ledger and servers; exit status 1 if a check fails."""
    log_output.configure_logs("critical")  # the findings report it
    if not collector_check.check_collector(load_settings(config), click.echo):
        sys.exit(1)


@click.command(name="accept-clock")
@config_option
@click.confirmation_option(prompt="Is the wall clock of this machine correct now?")
def accept_clock_command(config: Path | None) -> None:
    """Make the running collector accept the current wall clock after it was found suspect, or while no node confirms it."""
    directory = settings.state_directory(load_settings(config))
    try:
        state = clock.read_state(directory)
    except clock.ClockFileError as error:
        message = f"{error}; fix: restart the collector, which begins a new one"
        raise click.ClickException(message) from error
    if state is None or not state.hold_reason:
        message = "nothing to accept: the clock is neither suspect nor unconfirmed"
        raise click.ClickException(message)
    (directory / clock.ACCEPTED_FILE).touch()
    click.echo(
        "accepted; the running collector applies it within seconds; it was suspect or unconfirmed: "
        f"{state.hold_reason}"
    )


@click.command(name="copy-database")
@config_option
@click.option(
    "--from",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"SQLite file to copy. Default: {database_location.FILE} in the state directory.",
)
def copy_database_command(config: Path | None, file: Path | None) -> None:
    """Copy the ledger of a stopped collector from SQLite to the empty PostgreSQL database of `ledger.url`.

    Evidence, ledger, billing and audit records are copied in one transaction, read back, compared by number and digest
    of the rows of each table, and checked as by `railscope audit verify --ledger`. If that fails, or is interrupted,
    the PostgreSQL database stays empty. No row of the file is changed.
    """
    current = load_settings(config)
    directory = settings.state_directory(current)
    failures = (database.UnusableLedgerError, settings.SettingsError)
    with convert_errors(failures, click.ClickException):
        url = database_location.ledger_url(current.ledger, directory)
        path = (file or directory / database_location.FILE).absolute()
        lock = service.lock_state_directory(
            directory, "collector"
        )  # first: opening a ledger adds missing tables
        try:
            source = database.Database(f"sqlite:///{path}", tables.metadata, make=False)
            with contextlib.closing(source):
                copy = database_copy.copy_database(
                    source,
                    url,
                    tables.metadata,
                    ledger_check.check_outbox,
                    lambda table: click.echo(str(table)),
                )
        finally:
            os.close(lock)
        copy.close()
    click.echo(f"copied {source.name} to {copy.name}")


@click.command(name="sample-config")
def sample_config() -> None:
    """Print a commented settings file with every setting at its default."""
    text = settings.sample(CollectorSettings, "Settings of the Railscope collector.")
    click.echo(text, nl=False)
