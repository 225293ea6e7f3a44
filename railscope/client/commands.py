"""Commands that read a running collector or agent: status, tables and `top`.

Exit status of all: 0 done (of `status`: healthy), 1 degraded, 2 failed (both of `status` only), 3 unknown.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

import click

from railscope import extras
from railscope.client import (
    cluster_reading as cluster,
    cluster_tables,
    status as state,
    tables,
)
from railscope.client.agent_reading import AgentReader
from railscope.client.command_options import (
    UNKNOWN,
    ClientCommand,
    chosen_address,
    connect,
    connection_options,
    json_option,
    node_option,
    state_option,
    table_options,
    tenant_option,
    terminal_width,
)
from railscope.client.connection import ClientError, ReadClient
from railscope.client.node_reading import gpu_table
from railscope.client.top_views import create_pages, plain_page


def read_report(client: ReadClient) -> state.StatusReport:
    """Return the status of a server. Raises ClientError if it does not answer."""
    if client.address.is_agent:
        return state.agent_report(client.address.url, AgentReader(client).read())
    reading = cluster.ClusterReader(client).read(state.CLUSTER_DOCUMENTS)
    return state.cluster_report(client.address.url, reading)


@click.command(cls=ClientCommand)
@json_option
@connection_options
def status(*, as_json: bool, **options: Any) -> None:
    """Print the status of a cluster, or of the node of an agent, on one screen.

    Exit status 0: healthy. 1: degraded; a node is stale, or a warning is open. 2: failed; a critical
    incident is open, or a GPU of the agent has failed. 3: unknown; no answer, no or stale data, or an error.
    """
    url, program = (
        options["collector"] or options["agent"],
        "agent" if options["agent"] else "collector",
    )
    try:
        address = chosen_address(options)
        url, program = address.url, address.program
        report = read_report(connect(address))
    except ClientError as error:
        report = state.unknown_report(url, program, error.message)
    click.echo(
        json.dumps(report.to_json(), indent=1) if as_json else report.as_text(terminal_width())
    )
    sys.exit(int(report.status))


def _print_table(table: tables.ClientTable, options: dict[str, Any], **filters: str) -> None:
    """Print a table; exit with status 3 if its rows are unknown."""
    found = table.filtered({key: pattern for key, pattern in filters.items() if pattern})
    if options["as_json"]:
        content = {
            table.name: None if found.absence else list(found.rows),
            "absence": found.absence or None,
            "notes": found.notes,
        }
        click.echo(json.dumps(content, indent=1))
    elif found.absence:
        raise ClientError(found.absence)
    elif found.rows and table.name == "incidents" and not options["wide"]:
        click.echo(
            "\n".join([*cluster_tables.incident_lines(found.rows, terminal_width()), *found.notes])
        )
    else:
        click.echo(found.as_text(terminal_width(), wide=options["wide"]))
    if found.absence:
        sys.exit(UNKNOWN)


def _read_cluster(
    options: dict[str, Any], *documents: str, **further: cluster.DocumentRequest
) -> cluster.ClusterReading:
    address = chosen_address(options)
    if address.is_agent:
        message = f"invalid --agent {address.url}: an agent has no such table; fix: name a collector, or run railscope top --agent"
        raise ClientError(message)
    return cluster.ClusterReader(connect(address)).read(documents, **further)


@click.command(cls=ClientCommand)
@node_option
@state_option("healthy, degraded, failed or unknown")
@table_options
def nodes(*, node: str, of_state: str, **options: Any) -> None:
    """List the nodes, worst first. An agent lists the GPUs of its node, with NIC and rail.

    failed: the cause of a critical incident, or a GPU that has failed, is on the node. degraded: the cause
    of a warning, or a victim. unknown: the node or its diagnosis is stale, or it never reported.
    """
    address = chosen_address(options)
    if address.is_agent:
        reading = AgentReader(connect(address)).read()
        _print_table(gpu_table(reading.gpu_rows, with_rates=False), options, health=of_state)
        return
    found = _read_cluster(options, "nodes", "inventory")
    _print_table(cluster_tables.node_table(found), options, node=node, state=of_state)


@click.command(cls=ClientCommand)
@node_option
@click.option("--rail", type=click.IntRange(0), help="Only on this rail.")
@tenant_option
@state_option("failed, unknown, degraded or healthy")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=1000,
    show_default=True,
    help="Number of GPUs at most.",
)
@click.option(
    "--offset", type=click.IntRange(0), default=0, help="Number of GPUs to omit, for the next part."
)
@table_options
def gpus(*, node: str, tenant: str, of_state: str, limit: int, **options: Any) -> None:
    """List the GPUs of all nodes with rail and NIC, worst first; those of the node of an agent.

    The state is the worse of the verdict of the agent and of the open incidents of the GPU, its NIC and its node.
    """
    rail, offset = options["rail"], options["offset"]
    client = connect(chosen_address(options))
    chosen = {
        "node": node,
        "rail": "" if rail is None else str(rail),
        "tenant": tenant,
        "state": of_state,
    }
    if client.address.is_agent:
        rows = AgentReader(client).read().gpu_rows
        chosen["health"] = chosen.pop("state")
        _print_table(gpu_table(rows, with_rates=False), options, **chosen)
        return
    query = {key: text for key, text in chosen.items() if text}
    request = cluster.gpus_request(query | {"limit": str(limit), "offset": str(offset)})
    reading = cluster.ClusterReader(client).read((), gpus=request)
    table, answer = cluster_tables.fleet_gpu_table(reading), reading.document("gpus")
    more = answer.found - answer.offset - len(answer.rows) if answer else 0
    note = f"{more} of {answer.found} GPUs follow: --offset {offset + limit}" if more > 0 else ""
    _print_table(replace(table, notes=(*table.notes, *filter(None, [note]))), options)


@click.command(cls=ClientCommand)
@tenant_option
@state_option("healthy, degraded or unknown")
@table_options
def jobs(*, tenant: str, of_state: str, **options: Any) -> None:
    """List the running jobs, worst first, with step period and slowest GPU.

    degraded: an open incident touches the job. unknown: incidents are not known, or some of its GPUs are on stale nodes.
    """
    found = _read_cluster(options, "jobs")
    _print_table(cluster_tables.job_table(found), options, tenant=tenant, state=of_state)


@click.command(cls=ClientCommand)
@click.option(
    "--state",
    "of_state",
    type=click.Choice(["open", "closed", "all"]),
    default="open",
    show_default=True,
    help="Only in this state.",
)
@click.option("--severity", type=click.Choice(cluster.SEVERITIES), help="Only of this severity.")
@node_option
@tenant_option
@table_options
def incidents(
    *, of_state: str, severity: str | None, node: str, tenant: str, **options: Any
) -> None:
    """List the incidents, worst first: cause, victims and action. Ended ones follow, newest first."""
    states = [("state", name) for name in ("open", "closed") if of_state in {name, "all"}]
    request = cluster.DOCUMENTS["incidents"]._replace(query=tuple(states))
    table = cluster_tables.incident_table(
        _read_cluster(options, incidents=request), closed=of_state != "open"
    )
    chosen = "" if of_state == "all" else of_state
    _print_table(table, options, state=chosen, severity=severity or "", nodes=node, tenant=tenant)


@click.command(cls=ClientCommand)
@tenant_option
@table_options
def tenants(*, tenant: str, **options: Any) -> None:
    """List the tenants with their GPUs, jobs and GPU time."""
    found = _read_cluster(options, "tenants", "account", "jobs", "incidents")
    _print_table(cluster_tables.tenant_table(found), options, tenant=tenant)


@click.command(cls=ClientCommand)
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads of a view; more on a slow link.",
)
@click.option("--once", is_flag=True, help="Print the first view as text, and end.")
@json_option
@connection_options
def top(*, interval: float, once: bool, as_json: bool, **options: Any) -> None:
    """Show a cluster, or the node of an agent, live: nodes, GPUs with NIC and rail, jobs, tenants, incidents, events.

    `?` shows the keys. It needs the extra railscope[top] and a terminal; without the extra, or where the
    output is not a terminal, it prints the first view once, and in a terminal without cursor control
    (TERM=dumb) at each interval.
    """
    address = chosen_address(options)
    pages = create_pages(connect(address))
    if as_json:
        page = pages.read(pages.first())
        page = pages.read(page.permitted) if page.permitted else page
        content = {
            "head": page.head,
            "age_seconds": page.age_seconds,
            page.table.name: None if page.table.absence else list(page.table.rows),
        }
        click.echo(
            json.dumps(
                content | {"absence": page.table.absence or None, "notes": page.table.notes},
                indent=1,
            )
        )
        sys.exit(UNKNOWN if page.table.absence else 0)
    is_dumb = os.environ.get("TERM", "dumb") in {"", "dumb"}
    if not once and sys.stdout.isatty() and not is_dumb:
        try:
            live = importlib.import_module("railscope.client.top")
        except ImportError as error:
            click.echo(
                f"railscope top: no live view: {error}; fix: {extras.install_command('top')}",
                err=True,
            )
        else:
            live.run(pages, address.url, interval)
            return
    while True:
        page = pages.read(pages.first())
        page = pages.read(page.permitted) if page.permitted else page
        click.echo(plain_page(page, terminal_width()))
        if once or not (sys.stdout.isatty() and is_dumb):
            sys.exit(UNKNOWN if page.table.absence else 0)
        time.sleep(interval)
        click.echo()
