"""`railscope ...`: the command line. Commands of other packages are imported on demand."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from railscope import __version__, extras, standard_output
from railscope.settings import SettingsError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_ON_DEMAND = {
    "status": ("railscope.client.commands", "status", "Print the status of a running cluster or node on one screen."),
    "top": ("railscope.client.commands", "top", "Show the status of a running cluster or node repeatedly."),
    "incidents": ("railscope.client.commands", "incidents", "List the incidents of a running cluster, worst first."),
    "nodes": ("railscope.client.commands", "nodes", "List the nodes of a running cluster, worst first."),
    "gpus": ("railscope.client.commands", "gpus", "List the GPUs of all nodes with rail and NIC, worst first."),
    "jobs": ("railscope.client.commands", "jobs", "List the running jobs of a cluster, worst first."),
    "tenants": ("railscope.client.commands", "tenants", "List the tenants of a running cluster."),
    "rails": ("railscope.client.commands", "rails", "List the rails over all nodes."),
    "switches": ("railscope.client.commands", "switches", "List the switches of a running cluster."),
    "events": ("railscope.client.commands", "events", "List the newest events of all nodes."),
    "context": ("railscope.client.context_commands", "context", "Store servers by name, so that a URL is typed once."),
    "agent": ("railscope_agent.commands", "agent", "Read this node: GPUs, RDMA ports, NICs, PCIe, host, kernel log."),
    "claim": ("railscope_agent.commands.claim", "claim", "Report the start and end of GPU claims to the agent of this node."),
    "health": ("railscope_agent.commands.health", "health", "Report the health of this node, or of a job's GPUs and NICs, for schedulers."),
    "collector": ("railscope_collector.commands", "collector", "Combine the frames of all nodes into cluster, rail and tenant views."),
    "diagnose": ("railscope_collector.commands.diagnose", "diagnose", "Find cause, victims and evidence of faults in captures or a frame log."),
    "bill": ("railscope_collector.commands.bill", "bill", "Compute the GPU usage of tenants and its cost."),
    "audit": ("railscope_collector.commands.audit", "audit", "Check and read an audit log from its files and a public key."),
    "demo": ("railscope_simulator.demo.__main__", "demo", "Run a collector, agents and simulated nodes with faults, as `make demo` does."),
    "simulate": ("railscope_simulator.cli", "simulate", "Simulate GPU nodes: captures of a node or of a cluster."),
    "simulate-agent": ("railscope_simulator.cli", "simulate_agent", "Run an agent on a node that is simulated live."),
}  # fmt: skip
"""Module, name and help of each command."""
_SECTIONS = {
    "Inspect a running cluster": ("status", "top", "incidents", "nodes", "gpus", "jobs", "tenants", "rails", "switches", "events", "context"),
    "On a node": ("agent", "claim", "health"),
    "On the collector's server": ("collector", "diagnose", "files", "catalog"),
    "Billing and audit": ("bill", "audit"),
    "Try it": ("demo", "simulate", "simulate-agent"),
}  # fmt: skip
"""Commands by section of the help."""
COLLECTOR_MODULES = frozenset(
    ("aiohttp", "cryptography", "influxdb_client", "jinja2", "markdown_it", "numpy", "sqlalchemy")
)
"""Modules of the extra `collector`, which commands load without a check of their own."""
COMPLETION_VARIABLE = "_RAILSCOPE_COMPLETE"
"""Environment variable of the completion scripts of shells, as click names it."""
_COMPLETION_TABLE = Path(__file__).with_name("completion.json")


class OnDemandGroup(click.Group):
    """Group of commands by name; `modules` has the module, the name there and the help of each.

    `sections` has all commands by section of the help; without it there is one.
    """

    def __init__(
        self,
        *arguments: Any,
        modules: Mapping[str, tuple[str, str, str]],
        sections: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules
        self._sections = sections

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command and its arguments; the error for an unknown one names similar ones."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            similar = " or ".join(difflib.get_close_matches(args[0], names))
            hint = f" Did you mean {similar}?" if similar else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of all commands; none is imported."""
        sections = self._sections or {"Commands": self.list_commands(ctx)}
        width = max(map(len, self.list_commands(ctx)))
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), self._short_help(ctx, name)) for name in names]
                )

    def _short_help(self, ctx: click.Context, name: str) -> str:
        command = None if name in self._modules else self.get_command(ctx, name)
        return command.get_short_help_str(80) if command else self._modules[name][2]


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
    cls=OnDemandGroup,
    modules=_ON_DEMAND,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["--help", "-h"]},
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
    """Run the command line.

    An invalid setting or a missing extra is one line with exit status 2. Output that cannot be written is one line
    with exit status 1, and without the line if its reader has ended.
    """
    standard_output.check_output()
    try:
        try:
            (completion_tree() if COMPLETION_VARIABLE in os.environ else root)(arguments)
        finally:
            standard_output.flush_output()
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
    except* standard_output.ClosedOutputError:
        sys.exit(1)
    except* standard_output.OutputError as errors:
        click.echo(f"railscope: {_flat(errors)[0]}; fix: write to another file or device", err=True)
        sys.exit(1)


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors
