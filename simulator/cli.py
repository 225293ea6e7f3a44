"""`railscope simulate`: a simulated node, recorded as a capture."""

from __future__ import annotations

from pathlib import Path

import click

from railscope.capture import write_capture
from simulator import SCENARIOS, NodeSpec, about, find_model, moments


@click.command()
@click.option("--scenario", default="training", show_default=True, help="Scenario to simulate.")
@click.option(
    "--model", default="h100", show_default=True,
    help="GPU model: v100, t4, a100, l40s, h100, h200, b200, gb200.",
)  # fmt: skip
@click.option(
    "--mode", default="whole", show_default=True,
    help="GPU sharing mode: whole, mig, mps, time_slicing, vgpu, passthrough.",
)  # fmt: skip
@click.option(
    "--nic", default="cx7", show_default=True,
    help="NIC model: cx7, bnxt, irdma, mixed.",
)  # fmt: skip
@click.option(
    "--scheduler", default="none", show_default=True,
    help="Scheduler that assigns the GPUs: none, kubernetes, slurm.",
)  # fmt: skip
@click.option("--stray", is_flag=True, help="Include one process that uses a GPU without a claim.")
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Duration of the capture in seconds.",
)
@click.option("--step-seconds", type=click.FloatRange(min=0.01), default=1.0, show_default=True,
              help="Seconds between two moments; 0.1 shows bursts.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--node", default="gpu-node-0", show_default=True, help="Name of the node.")
@click.argument("directory", type=click.Path(path_type=Path))
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
    directory: Path,
) -> None:
    """Write a capture of a simulated GPU node, with 8 GPUs (4 with gb200) and a rail each, to DIRECTORY."""
    try:
        found = find_model(model)
        spec = NodeSpec(
            node=node, seed=seed, gpus=found.per_node, model=found.name, scenario=scenario, mode=mode,
            nic=nic, scheduler=scheduler, stray=stray,
        )  # fmt: skip
        write_capture(directory, about(spec, seconds), moments(spec, seconds, step_seconds))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{directory}: {seconds} s of {node}, {SCENARIOS[scenario]}")
