"""`railscope ...`: the command line. Commands of other packages are imported on demand."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from railscope import __version__, extras
from railscope.settings import SettingsError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_ON_DEMAND = {
    "agent": ("railscope_agent.commands", "agent", "Read this node: GPUs, RDMA ports, NICs, PCIe, host, kernel log."),
    "audit": ("railscope_collector.commands.audit", "audit", "Check and read an audit log from its files and a public key."),
    "claim": ("railscope_agent.commands.claim", "claim", "Report the start and end of GPU claims to the agent of this node."),
    "bill": ("railscope_collector.commands.bill", "bill", "Compute the GPU usage of tenants and its cost."),
    "context": ("railscope.client.context_commands", "context", "Store servers by name, so that a URL is typed once."),
    "collector": ("railscope_collector.commands", "collector", "Combine the frames of all nodes into cluster, rail and tenant views."),
    "demo": ("railscope_simulator.demo.__main__", "demo", "Run a collector, agents and simulated nodes with faults, as `make demo` does."),
    "diagnose": ("railscope_collector.commands.diagnose", "diagnose", "Find cause, victims and evidence of faults in captures or a frame log."),
    "gpus": ("railscope.client.commands", "gpus", "List the GPUs of all nodes with rail and NIC, worst first."),
    "health": ("railscope_agent.commands.health", "health", "Report the health of this node, or of a job's GPUs and NICs, for schedulers."),
    "incidents": ("railscope.client.commands", "incidents", "List the incidents of a running cluster, worst first."),
    "jobs": ("railscope.client.commands", "jobs", "List the running jobs of a cluster, worst first."),
    "nodes": ("railscope.client.commands", "nodes", "List the nodes of a running cluster, worst first."),
    "simulate": ("railscope_simulator.cli", "simulate", "Simulate GPU nodes: captures of a node or of a cluster."),
    "simulate-agent": ("railscope_simulator.cli", "simulate_agent", "Run an agent on a node that is simulated live."),
    "status": ("railscope.client.commands", "status", "Print the status of a running cluster or node on one screen."),
    "top": ("railscope.client.commands", "top", "Show a running cluster or node live in the terminal."),
    "tenants": ("railscope.client.commands", "tenants", "List the tenants of a running cluster."),
}  # fmt: skip
"""Module, name and help of each command."""
COLLECTOR_MODULES = frozenset(("aiohttp", "influxdb_client", "jinja2", "numpy", "sqlalchemy"))
"""Modules of the extra `collector`, which commands load without a check of their own."""
COMPLETION_VARIABLE = "_RAILSCOPE_COMPLETE"
"""Environment variable of the completion scripts of shells, as click names it."""
_COMPLETION_TABLE = Path(__file__).with_name("completion.json")


class OnDemandGroup(click.Group):
    """Group of commands by name; `modules` has the module, the name there and the help of each."""

    def __init__(
        self, *arguments: Any, modules: Mapping[str, tuple[str, str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *self._modules])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; its module is imported."""
        if cmd_name in self._modules:
            module, name, _ = self._modules[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), name)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of all commands; none is imported."""
        rows = []
        for name in self.list_commands(ctx):
            command = None if name in self._modules else self.get_command(ctx, name)
            text = command.get_short_help_str(80) if command else self._modules[name][2]
            rows.append((name, text))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def format_option(*formats: str) -> Callable[[_Command], _Command]:
    """Return the option `--format`, passed as `form`; the default is the first format."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


@click.group(
    cls=OnDemandGroup, modules=_ON_DEMAND, context_settings={"help_option_names": ["--help", "-h"]}
)
@click.version_option(__version__, prog_name="railscope")
def root() -> None:
    """Telemetry of a GPU training cluster: GPU, PCIe, RoCE and tenants on one clock."""


@root.command()
@format_option("table", "md", "json")
def catalog(form: str) -> None:
    """Print the metric reference."""
    from railscope.catalog import reference  # noqa: PLC0415 - only this command needs it

    click.echo(reference.render(form), nl=False)


@root.command()
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Copy the files to this directory, which is created, and list those that were written.",
)
@click.option("--force", is_flag=True, help="Replace files of DIRECTORY that differ.")
def files(*, directory: Path | None, force: bool) -> None:
    """List or copy dashboards, alert rules, runbooks, units, sample settings, Slurm scripts and shell completion.

    Each file is replaced atomically. If one in DIRECTORY differs, nothing is copied, unless --force is given.
    """
    from railscope import shipped_files  # noqa: PLC0415 - only this command needs it

    if directory is None:
        names = list(shipped_files.shipped_files())
    else:
        try:
            names = shipped_files.copy_shipped_files(directory, replace=force)
        except (shipped_files.DifferingFilesError, OSError) as error:
            raise click.ClickException(str(error)) from error
    for name in names:
        click.echo(name)


def completion_tree() -> click.Command:
    """Return the commands with the options of the generated table: completion imports none of their modules."""
    commands: dict[str, click.Command] = {}
    for path, entry in json.loads(_COMPLETION_TABLE.read_text()).items():
        parent, _, name = path.rpartition(" ")
        kind = click.Group if entry["is_group"] else click.Command
        parameters = [_completion_parameter(**parameter) for parameter in entry["parameters"]]
        commands[path] = kind(name, params=parameters, help=entry["help"])
        if isinstance(group := commands.get(parent), click.Group):
            group.add_command(commands[path])
    commands["railscope"].context_settings = root.context_settings
    return commands["railscope"]


def _completion_parameter(
    names: list[str], value: str | list[str] = "text", about: str = "", *, multiple: bool = False
) -> click.Parameter:
    types = {"file": click.Path(), "directory": click.Path(file_okay=False)}
    kind = click.Choice(value) if isinstance(value, list) else types.get(value)
    if not names[0].startswith("-"):
        return click.Argument(names, type=kind, nargs=-1 if multiple else 1)
    return click.Option(names, type=kind, is_flag=value == "flag", multiple=multiple, help=about)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an invalid setting or a missing extra is one line with exit status 2."""
    try:
        (completion_tree() if COMPLETION_VARIABLE in os.environ else root)(arguments)
    # Errors of concurrent tasks are raised as groups.
    except* SettingsError as errors:
        for error in _flat(errors):
            click.echo(f"railscope: {error}", err=True)
        sys.exit(2)
    except* ModuleNotFoundError as errors:
        names = {str(getattr(error, "name", "")).partition(".")[0] for error in _flat(errors)}
        if not names <= COLLECTOR_MODULES:
            raise
        message = f"missing {min(names)}, which this command requires; fix: {extras.install_command('collector')}"
        click.echo(f"railscope: {message}", err=True)
        sys.exit(2)


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
