"""Commands of the agent: the group `railscope agent`, and the options that several of them have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from railscope import settings
from railscope.cli import OnDemandGroup
from railscope_agent.config import PREFIX, AgentSettings

_READ_ONCE = "railscope_agent.commands.read_once"
_COMMANDS = {
    "check": (_READ_ONCE, "check", "Report supported, denied and absent features of this node, and faults of GPUs and NICs, with remedies."),
    "once": (_READ_ONCE, "once", "Read every source once and print the readings."),
    "record": ("railscope_agent.commands.record", "record", "Record this node into DIRECTORY, to be replayed with --replay."),
    "replay": ("railscope_agent.commands.replay", "replay_command", "Write the frames of captures to standard output, in the wire format."),
    "run": ("railscope_agent.commands.run", "run", "Sample, serve /metrics and ship frames until stopped."),
    "topology": (_READ_ONCE, "topology", "Show the PCI tree, the distances between GPUs and NICs, and the rails of the NICs."),
}  # fmt: skip
"""Module, name and help of each command."""

config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Settings file (TOML). Default: {settings.CONFIGURATION}/agent.toml, if it exists.",
)
root_option = click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Read /proc, /sys and /dev below this directory.",
)
replay_option = click.option(
    "--replay",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Replay a capture instead of reading this node.",
)


@click.group(cls=OnDemandGroup, modules=_COMMANDS)
def agent() -> None:
    """Read this node: GPUs, RDMA ports, NICs, PCIe, host, kernel log."""


@agent.command(name="sample-config")
def sample_config() -> None:
    """Print a commented settings file with every setting at its default."""
    click.echo(settings.sample(AgentSettings, "Settings of the Railscope agent."), nl=False)


def load_settings(
    config: Path | None,
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> AgentSettings:
    """Return the settings from defaults, the file, the environment and the flags. Raises SettingsError."""
    file = config or settings.default_file("agent")
    return settings.load(AgentSettings, file=file, prefix=PREFIX, flags=flags, defaults=defaults)
