"""`railscope ...`: the command line. What belongs to agent and collector loads on demand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from railscope import __version__
from railscope.settings import SettingsError

_ON_DEMAND = {
    "agent": ("agent.cli", "agent"),
    "audit": ("collector.audit.command", "audit"),
    "claim": ("agent.claim_command", "claim"),
    "bill": ("collector.bill_command", "bill"),
    "collector": ("collector.cli", "collector"),
}
_HELP = {
    "agent": "Read this server: GPUs, RDMA ports, network cards, PCIe, host, kernel log.",
    "audit": "Check and read an audit log from its files and a public key.",
    "claim": "Tell the agent of this server who is given a GPU, and when it is given back.",
    "bill": "Work out what tenants had of the GPUs, and what it costs.",
    "collector": "Turn frames of all nodes into cluster, rail and tenant views.",
}


class _OnDemand(click.Group):
    """A group that imports the agent or the collector only when one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ON_DEMAND])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _ON_DEMAND:
            module, name = _ON_DEMAND[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), name)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = None if name in _ON_DEMAND else self.get_command(ctx, name)
            rows.append((name, command.get_short_help_str(80) if command else _HELP[name]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_OnDemand)
@click.version_option(__version__, prog_name="railscope")
def root() -> None:
    """Telemetry of a GPU training cluster: GPU, PCIe, RoCE and tenants on one clock."""


@root.command()
@click.option(
    "--format", "form", type=click.Choice(["table", "md", "json"]), default="table",
    show_default=True, help="How to print.",
)  # fmt: skip
def catalog(form: str) -> None:
    """Print the metric reference."""
    from railscope.catalog import reference  # noqa: PLC0415 - only this command needs it

    click.echo(reference.render(form), nl=False)


@root.command()
@click.option("--scenario", default="training", show_default=True, help="What happens on the node.")
@click.option(
    "--model", default="h100", show_default=True,
    help="Which GPUs it has: v100, t4, a100, l40s, h100, h200, b200, gb200.",
)  # fmt: skip
@click.option(
    "--mode", default="whole", show_default=True,
    help="Who has the GPUs: whole, mig, mps, time_slicing, vgpu, passthrough.",
)  # fmt: skip
@click.option(
    "--nic", default="cx7", show_default=True,
    help="Which network cards it has: cx7, bnxt, irdma, mixed.",
)  # fmt: skip
@click.option(
    "--scheduler", default="none", show_default=True,
    help="Who gives the GPUs out: none, kubernetes, slurm.",
)  # fmt: skip
@click.option("--stray", is_flag=True, help="One process uses a GPU that nobody gave to it.")
@click.option(
    "--seconds", type=click.IntRange(min=1), default=60, show_default=True, help="How long it is."
)
@click.option("--step-seconds", type=click.FloatRange(min=0.01), default=1.0, show_default=True,
              help="From one moment to the next; 0.1 shows bursts.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="What random numbers come of.")
@click.option("--node", default="gpu-node-0", show_default=True, help="Name of the server.")
@click.argument("folder", type=click.Path(path_type=Path))
def simulate(  # noqa: PLR0913 - one for each option
    *,
    scenario: str,
    model: str,
    mode: str,
    nic: str,
    scheduler: str,
    stray: bool,
    seconds: int,
    step_seconds: float,
    seed: int,
    node: str,
    folder: Path,
) -> None:
    """Make a capture of a simulated GPU server in FOLDER, with 8 GPUs (4 with gb200) and a rail each."""
    from railscope.capture import write_capture  # noqa: PLC0415 - only this command needs it
    from railscope.simulator import (  # noqa: PLC0415 - as above
        SCENARIOS,
        NodeSpec,
        about,
        find_model,
        moments,
    )

    try:
        found = find_model(model)
        spec = NodeSpec(
            node=node, seed=seed, gpus=found.per_node, model=found.name, scenario=scenario, mode=mode,
            nic=nic, scheduler=scheduler, stray=stray,
        )  # fmt: skip
        write_capture(folder, about(spec, seconds), moments(spec, seconds, step_seconds))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{folder}: {seconds} s of {node}, {SCENARIOS[scenario]}")


def main() -> None:
    """Run the command line; a wrong setting is one clear line and exit status 2."""
    try:
        root()
    except* SettingsError as errors:
        for error in _flat(errors):
            click.echo(f"railscope: {error}", err=True)
        sys.exit(2)


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
