"""The command `railscope claim`: start and end claims on GPUs of this node at its agent.

For the prolog and epilog of a scheduler, and for an administrator.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from railscope import cli, settings
from railscope_agent.commands.agent_client import AgentClient, agent_socket
from railscope_agent.config import CLAIMS_PATH
from railscope_agent.owners import slurm

_COLUMNS = (
    "index", "device", "pci_address", "share", "source", "authority", "workload", "tenant", "owner", "start", "id",
)  # fmt: skip
"""Columns of the list of claims."""
Command = TypeVar("Command", bound=Callable[..., Any])


def _add_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_agent_options = _add_options(
    click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Settings file of the agent (TOML). Default: {settings.CONFIGURATION}/agent.toml, if it exists.",
    ),
    click.option("--socket", "path", help="Socket of the agent. Default: as in its settings."),
    click.option(
        "--timeout-seconds",
        type=click.FloatRange(min=0),
        default=5.0,
        show_default=True,
        help="Seconds to wait for an agent that is unreachable.",
    ),
)
_start_options = _add_options(
    click.option("--id", "name", help="Permanent, unique ID of the claim."),
    click.option(
        "--gpu",
        "gpus",
        multiple=True,
        help="Index, UUID, MIG UUID, PCI address or /dev/nvidiaN; several separated by commas.",
    ),
    click.option("--tenant", default="", help="Tenant of the claim, as on invoices."),
    click.option(
        "--owner", default="", help="Owner of the claim, as named by the scheduler: an account."
    ),
    click.option(
        "--workload",
        default="",
        help="Workload that holds the claim: slurm:123, kubernetes:research/train.",
    ),
    click.option("--start", help="Start of the claim (RFC 3339). Default: now."),
    click.option("--shared", is_flag=True, help="Allow other claims on the same devices."),
    click.option(
        "--share",
        default="",
        help="Fraction of each device: 3/8 or 37.5%. Other claims may hold the rest.",
    ),
    click.option(
        "--system", is_flag=True, help="Mark as a health check or the administrator's own use."
    ),
    click.option(
        "--from-slurm",
        is_flag=True,
        help="In a prolog: read ID, GPUs, owner and workload from SLURM_JOB_ID and related variables.",
    ),
)


def _create_client(connection: Mapping[str, Any]) -> AgentClient:
    """Return a client from the options; by default from the settings of the installed agent."""
    path = agent_socket(connection["config"], connection["path"])
    return AgentClient(path, connection["timeout_seconds"])


@click.group()
def claim() -> None:
    """Start and end claims on the GPUs of this node."""


@claim.command()
@_start_options
@_agent_options
def start(gpus: tuple[str, ...], **options: Any) -> None:
    """Start a claim on GPUs. Repeating it has no effect."""
    body = {
        "id": options["name"],
        "gpus": [name for text in gpus for name in text.split(",") if name],
        "tenant": options["tenant"],
        "owner": options["owner"],
        "workload": options["workload"],
        "start": options["start"],
        "exclusive": not (options["shared"] or options["share"]),
        "share": options["share"] or None,
        "system": options["system"],
    }
    if options["from_slurm"]:
        job = _claim_of_slurm_job(os.environ)
        if not job["gpus"] and not body["gpus"]:
            return  # a job without GPUs claims none
        # Options of the command take precedence over the environment of the job.
        body = {**job, **{key: value for key, value in body.items() if value not in (None, "", [])}}
    _check_required(body, ("id", "--id"), ("gpus", "--gpu"))
    answer = _create_client(options).request(
        "POST", CLAIMS_PATH, {k: v for k, v in body.items() if v is not None}
    )
    started = answer["claim"]
    click.echo(f"{started['id']}: {', '.join(started['devices'])} since {started['start']}")


@claim.command()
@click.argument("name", required=False)
@click.option("--end", "when", help="End of the claim (RFC 3339). Default: now.")
@click.option(
    "--from-slurm", is_flag=True, help="In an epilog: end the claims of job SLURM_JOB_ID."
)
@_agent_options
def end(name: str | None, when: str | None, **options: Any) -> None:
    """End a claim on GPUs. Repeating it has no effect."""
    agent, body = _create_client(options), {} if when is None else {"end": when}
    names = [name] if name else []
    if options["from_slurm"]:
        workload = _claim_of_slurm_job(os.environ)["workload"]
        claims = agent.request("GET", CLAIMS_PATH)["claims"]
        job = workload.partition(":")[2]
        # Only claims that this command started: those of claim providers end with what they are read from.
        names = [
            claim_id["id"]
            for claim_id in claims
            if (claim_id["reported_by"], claim_id["source"], claim_id["workload"])
            == ("command", "slurm", job)
        ]
    elif not names:
        message = "missing claim: expected its id or --from-slurm"
        raise click.UsageError(message)
    for claim_id in dict.fromkeys(names):
        ended = agent.request("POST", f"{CLAIMS_PATH}/{quote(str(claim_id), safe='')}/end", body)[
            "claim"
        ]
        click.echo(f"{ended['id']}: {', '.join(ended['devices'])} until {ended['end']}")


@claim.command(name="list")
@cli.format_option("table", "json")
@_agent_options
def show(form: str, **options: Any) -> None:
    """List the claims in force on this node from all claim providers, and use without a claim."""
    claims = _create_client(options).request("GET", CLAIMS_PATH)["claims"]
    if form == "json":
        click.echo(json.dumps(claims, indent=1))
        return
    from railscope.client import columns, text_layout  # noqa: PLC0415 - a prolog does not need it

    shown = [columns.Column(name, itemgetter(name), "text") for name in _COLUMNS]
    for line in text_layout.table_lines(shown, claims, None):
        click.echo(line)


def _claim_of_slurm_job(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the claim of a job from its prolog's environment (slurm.schedmd.com/prolog_epilog.html).

    GPUs are UUIDs, or else device files.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        message = (
            "missing SLURM_JOB_ID: expected a job id; fix: use --from-slurm "
            "only in a prolog or epilog"
        )
        raise click.ClickException(message)
    owner = environment.get("SLURM_JOB_ACCOUNT") or environment.get("SLURM_JOB_USER", "")
    return {
        "id": f"slurm-{job}",
        "gpus": list(slurm.device_names(environment)),
        "owner": owner,
        "workload": f"slurm:{job}",
        "allow_restart": True,
    }


def _check_required(body: Mapping[str, Any], *options: tuple[str, str]) -> None:
    for key, option in options:
        if not body.get(key):
            message = f"missing option {option}"
            raise click.UsageError(message)
    if not body.get("tenant") and not body.get("owner"):
        message = "missing owner of the claim: expected --tenant or --owner"
        raise click.UsageError(message)
