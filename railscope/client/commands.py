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
from http import HTTPStatus
from typing import Any

import click
import msgspec

from railscope import api, extras
from railscope.client import (
    cluster_reading as cluster,
    cluster_tables,
    gpu_tables,
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
    name_argument,
    node_option,
    state_option,
    table_options,
    tenant_option,
    terminal_width,
)
from railscope.client.connection import ClientError, ReadClient
from railscope.client.top_views import create_pages, incident_facts, plain_page

STATES = ("failed", "unknown", "degraded", "healthy")
_STATES = ("state", "severity")
"""Columns whose values the options limit."""
_FACT_WIDTH = 14


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
    incident is open, or a GPU has failed. 3: unknown; no answer, no or stale data, or an error.
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


def _print_table(
    table: tables.ClientTable,
    options: dict[str, Any],
    *,
    name: str = "",
    below: tables.ClientTable | None = None,
    **filters: str,
) -> None:
    """Print a table, and another one below it; exit with status 3 if its rows are unknown.

    Raises ClientError if no row has a value that matches the filter `name`.
    """
    chosen = {key: pattern for key, pattern in filters.items() if pattern}
    unmatched = {key: text for key, one in chosen.items() if (text := table.unmatched(key, one))}
    if name in unmatched:
        raise ClientError(unmatched[name])
    found = table.filtered(chosen)
    notes = (*found.notes, *(text for key, text in unmatched.items() if key not in _STATES))
    found, others = replace(found, notes=notes), [below] if below else []
    if options["as_json"]:
        rows = {one.name: None if one.absence else list(one.rows) for one in (found, *others)}
        content = rows | {"absence": found.absence or None, "notes": found.notes}
        click.echo(json.dumps(content, indent=1))
    elif found.absence:
        raise ClientError(found.absence)
    elif found.rows and table.name == "incidents" and not options["wide"]:
        click.echo(
            "\n".join([*cluster_tables.incident_lines(found.rows, terminal_width()), *found.notes])
        )
    else:
        click.echo(found.as_text(terminal_width(), wide=options["wide"]))
        for one in others:
            click.echo("\n" + one.as_text(terminal_width(), wide=options["wide"]))
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
@state_option(*STATES)
@table_options
@name_argument("node")
def nodes(*, node: str, of_state: str, name: str, **options: Any) -> None:
    """List the nodes, worst first. An agent lists the GPUs of its node, with NIC and rail.

    With a NAME, the node and its GPUs; or the nodes that match it, such as gpu-1*.

    failed: the cause of a critical incident, or a GPU that has failed, is on the node. degraded: the cause
    of a warning is on the node, or a GPU is degraded; a victim keeps its own state. unknown: the node or its diagnosis is stale, or it never reported.
    """
    client = connect(chosen_address(options))
    if client.address.is_agent:
        table = gpu_tables.without_rates(AgentReader(client).read().gpu_table())
        _print_table(table, options, name="node", node=name or node, state=of_state)
        return
    found = cluster.ClusterReader(client).read(("nodes", "inventory"))
    table, below = cluster_tables.node_table(found), None
    if name in {row["node"] for row in table.rows}:
        request = cluster.node_request(name)
        below = gpu_tables.node_gpu_table(cluster.ClusterReader(client).read((), node=request))
    _print_table(table, options, name="node", below=below, node=name or node, state=of_state)


@click.command(cls=ClientCommand)
@node_option
@click.option("--rail", type=click.IntRange(0), help="Only on this rail.")
@tenant_option
@click.option("--state", "of_state", type=click.Choice(STATES), help="Only in this state.")
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
@name_argument("node")
def gpus(*, tenant: str, of_state: str | None, limit: int, name: str, **options: Any) -> None:
    """List the GPUs of all nodes with rail and NIC, worst first; those of the node of an agent.

    With a NAME, the GPUs of this node, or of the nodes that match it.

    The state is the worse of the verdict of the agent and of the open incidents of the GPU, its NIC and its node.
    """
    rail, offset, node = options["rail"], options["offset"], name or options["node"]
    client = connect(chosen_address(options))
    on_rail, state = "" if rail is None else str(rail), of_state or ""
    if client.address.is_agent:
        table = gpu_tables.without_rates(AgentReader(client).read().gpu_table())
        filters = {"rail": on_rail, "tenant": tenant, "state": state}
        _print_table(table, options, name="node", below=None, node=node, **filters)
        return
    chosen = {"node": node, "rail": on_rail, "tenant": tenant, "state": state}
    query = {key: text for key, text in chosen.items() if text}
    request = cluster.gpus_request(query | {"limit": str(limit), "offset": str(offset)})
    reader = cluster.ClusterReader(client)
    reading = reader.read((), gpus=request)
    table, answer = gpu_tables.fleet_gpu_table(reading), reading.document("gpus")
    if node and not table.rows:
        known = cluster_tables.node_table(reader.read(("nodes",)))
        if unmatched := known.unmatched("node", node):
            raise ClientError(unmatched)
    more = answer.found - answer.offset - len(answer.rows) if answer else 0
    note = f"{more} of {answer.found} GPUs follow: --offset {offset + limit}" if more > 0 else ""
    _print_table(replace(table, notes=(*table.notes, *filter(None, [note]))), options)


@click.command(cls=ClientCommand)
@tenant_option
@state_option("healthy", "degraded", "unknown")
@table_options
@click.argument("name", default="", metavar="[NAME]")
def jobs(*, tenant: str, of_state: str, name: str, **options: Any) -> None:
    """List the running jobs, worst first, with step period and slowest GPU.

    With a NAME, the jobs of this number or name, or that match it.

    degraded: an open incident affects the job. unknown: incidents are not known, or some of its GPUs are on stale nodes.
    """
    table = cluster_tables.job_table(_read_cluster(options, "jobs"))
    _print_table(table, options, name="workload", workload=name, tenant=tenant, state=of_state)


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
@click.argument("incident_id", default="", metavar="[ID]")
def incidents(
    *, of_state: str, severity: str | None, node: str, tenant: str, incident_id: str, **options: Any
) -> None:
    """List the incidents, worst first: cause, victims, action and ID. Ended ones follow, newest first.

    With an ID, one incident with its evidence and the commands to type, also an ended one.
    """
    states = [("state", name) for name in ("open", "closed") if of_state in {name, "all"}]
    request = cluster.DOCUMENTS["incidents"]._replace(query=tuple(states))
    if incident_id:
        _print_incident(incident_id, options)
        return
    table = cluster_tables.incident_table(
        _read_cluster(options, incidents=request), closed=of_state != "open"
    )
    chosen = "" if of_state == "all" else of_state
    _print_table(table, options, state=chosen, severity=severity or "", nodes=node, tenant=tenant)


def _print_incident(incident_id: str, options: dict[str, Any]) -> None:
    """Print one incident. Raises ClientError if there is none with this ID."""
    reading = _read_cluster(options, incident=cluster.incident_request(incident_id))
    incident: api.IncidentDocument | None = reading.document("incident")
    if incident is None:
        message = reading.absence("incident")
        if reading.errors["incident"].status == HTTPStatus.NOT_FOUND:
            message = (
                f"no incident {incident_id!r}; fix: railscope incidents --state all lists all IDs"
            )
        raise ClientError(message)
    row = cluster_tables.incident_row(reading, incident)
    if options["as_json"]:
        shown = row | {
            "evidence": msgspec.to_builtins(incident.evidence),
            "commands": incident.commands,
        }
        click.echo(json.dumps({"incidents": [shown]}, indent=1))
        return
    for fact in incident_facts(reading).rows:
        if fact["value"]:
            indent = " " * (_FACT_WIDTH + 2)
            text = f"{fact['fact']:{_FACT_WIDTH}}  {tables.show_text(fact['value'])}"
            click.echo("\n".join(tables.wrap(text, terminal_width(), indent)))
    # Not wrapped, so that each line can be copied.
    for command in incident.commands:
        click.echo(f"    {tables.show_text(command)}")


@click.command(cls=ClientCommand)
@tenant_option
@table_options
@name_argument("tenant")
def tenants(*, tenant: str, name: str, **options: Any) -> None:
    """List the tenants with their GPUs, jobs and GPU time.

    With a NAME, this tenant, or those that match it.
    """
    found = _read_cluster(options, "tenants", "jobs", "incidents")
    _print_table(cluster_tables.tenant_table(found), options, name="tenant", tenant=name or tenant)


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
