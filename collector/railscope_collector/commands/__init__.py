"""Commands of the collector: the group `railscope collector`, and the settings file of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from railscope import settings
from railscope.cli import OnDemandGroup
from railscope_collector.config import PREFIX, CollectorSettings

_ADMINISTRATION = "railscope_collector.commands.administration"
_COMMANDS = {
    "accept-clock": (_ADMINISTRATION, "accept_clock_command", "Make the running collector accept the current wall clock."),
    "archive": ("railscope_collector.commands.archive", "archive_group", "List and verify archived usage evidence, and compute days from it."),
    "check": (_ADMINISTRATION, "check_command", "Validate settings, files, ledger and servers."),
    "copy-database": (_ADMINISTRATION, "copy_database_command", "Copy the ledger from SQLite to PostgreSQL."),
    "run": (_ADMINISTRATION, "run", "Receive frames and serve the views until stopped."),
    "sample-config": (_ADMINISTRATION, "sample_config", "Print a commented settings file with every setting at its default."),
    "token": ("railscope_collector.commands.tokens", "token", "Create a token, and the line for the tokens file."),
}  # fmt: skip
"""Module, name and help of each command."""


@click.group(cls=OnDemandGroup, modules=_COMMANDS)
def collector() -> None:
    """Receive frames of all nodes and compute cluster, rail and tenant views."""


config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings file (TOML). Default: {settings.CONFIGURATION}/collector.toml, if it exists.",
)


def load_settings(config: Path | None, flags: Mapping[str, Any] | None = None) -> CollectorSettings:
    """Return the settings from the file, the environment and the flags. Raises SettingsError."""
    file = config or settings.default_file("collector")
    return settings.load(CollectorSettings, file=file, prefix=PREFIX, flags=flags)
