"""Commands that read a running collector or agent: status, tables, `top` and contexts.

Exit status of all: 0 done (of `status`: healthy), 1 degraded, 2 failed (both of `status` only), 3 unknown.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import click

from railscope.client import (
    cluster_reading as cluster,
    cluster_tables,
    contexts,
    status as state,
    tables,
)
from railscope.client.connection import ClientError, ReadClient, ServerAddress
from railscope.client.node_reading import AgentReader, gpu_table
from railscope.client.top_views import create_pages, plain_page

_Command = TypeVar("_Command", bound=Callable[..., Any])
UNKNOWN = int(state.OverallStatus.UNKNOWN)


class ClientCommand(click.Command):
    """Command that exits with status 3 for every error: the state of the cluster is unknown then."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as error:
            error.show()
            sys.exit(UNKNOWN)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ClientError as error:
            click.echo(f"Error: {error.message}", err=True)
            sys.exit(UNKNOWN)


_SERVER_OPTIONS = (
    click.option(
        "--collector",
        default="",
        metavar="URL",
        help="Base URL of a collector. Default: the context in use, else a collector on this host.",
    ),
    click.option(
        "--agent",
        default="",
        metavar="URL",
        help="Base URL of an agent, to read one node without a collector.",
    ),
)
_FILE_OPTIONS = (
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="File that contains a bearer token; other users must not be able to read it.",
    ),
    click.option(
        "--ca-file",
        default="",
        metavar="FILE",
        help="CA certificates (PEM) to verify the server. Default: those of the system.",
    ),
    click.option(
        "--certificate-file", default="", metavar="FILE", help="Client certificate (PEM)."
    ),
    click.option(
        "--key-file",
        default="",
        metavar="FILE",
        help="Key of the client certificate (PEM). Default: in the certificate's file.",
    ),
)
_CONTEXT_OPTIONS = (
    click.option("--context", default="", metavar="NAME", help="Context to use; `railscope context show` lists them."),
    click.option("--timeout-seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="Limit of one request."),
)  # fmt: skip
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_wide_option = click.option(
    "--wide", is_flag=True, help="Print all columns in full; lines may be long."
)
_tenant_option = click.option(
    "--tenant", default="", metavar="PATTERN", help="Only of these tenants."
)
_node_option = click.option(
    "--node", default="", metavar="PATTERN", help="Only of these nodes, such as gpu-*."
)


def _state_option(states: str) -> Callable[[_Command], _Command]:
    """Return the option that selects rows by state."""
    text = f"Only in this state: {states}."
    return click.option("--state", "of_state", default="", metavar="PATTERN", help=text)


def _add(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_connection_options = _add(*_SERVER_OPTIONS, *_FILE_OPTIONS, *_CONTEXT_OPTIONS)
_table_options = _add(_json_option, _wide_option, _connection_options)


def _address(options: dict[str, Any]) -> ServerAddress:
    return contexts.choose_address(options, contexts.default_path())


def _connect(address: ServerAddress) -> ReadClient:
    """Return a client whose connections are closed at the end of the command."""
    return click.get_current_context().with_resource(closing(ReadClient(address)))


def _width() -> int:
    """Return the width of the terminal; 80 where the output is not a terminal."""
    return (
        shutil.get_terminal_size((tables.NARROW, 24)).columns
        if sys.stdout.isatty()
        else tables.NARROW
    )


def read_report(client: ReadClient) -> state.StatusReport:
    """Return the status of a server. Raises ClientError if it does not answer."""
    if client.address.is_agent:
        return state.agent_report(client.address.url, AgentReader(client).read())
    reading = cluster.ClusterReader(client).read(state.CLUSTER_DOCUMENTS)
    return state.cluster_report(client.address.url, reading)


@click.command(cls=ClientCommand)
@_json_option
@_connection_options
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
        address = _address(options)
        url, program = address.url, address.program
        report = read_report(_connect(address))
    except ClientError as error:
        report = state.unknown_report(url, program, error.message)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else report.as_text(_width()))
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
        click.echo("\n".join([*cluster_tables.incident_lines(found.rows, _width()), *found.notes]))
    else:
        click.echo(found.as_text(_width(), wide=options["wide"]))
    if found.absence:
        sys.exit(UNKNOWN)


def _read_cluster(
    options: dict[str, Any], *documents: str, **further: cluster.DocumentRequest
) -> cluster.ClusterReading:
    address = _address(options)
    if address.is_agent:
        message = f"invalid --agent {address.url}: an agent has no such table; fix: name a collector, or run railscope top --agent"
        raise ClientError(message)
    return cluster.ClusterReader(_connect(address)).read(documents, **further)


@click.command(cls=ClientCommand)
@_node_option
@_state_option("healthy, degraded, failed or unknown")
@_table_options
def nodes(*, node: str, of_state: str, **options: Any) -> None:
    """List the nodes, worst first. An agent lists the GPUs of its node, with NIC and rail.

    failed: the cause of a critical incident, or a GPU that has failed, is on the node. degraded: the cause
    of a warning, or a victim. unknown: the node or its diagnosis is stale, or it never reported.
    """
    address = _address(options)
    if address.is_agent:
        reading = AgentReader(_connect(address)).read()
        _print_table(gpu_table(reading.gpu_rows, with_rates=False), options, health=of_state)
        return
    found = _read_cluster(options, "nodes", "inventory")
    _print_table(cluster_tables.node_table(found), options, node=node, state=of_state)


@click.command(cls=ClientCommand)
@_node_option
@click.option("--rail", type=click.IntRange(0), help="Only on this rail.")
@_tenant_option
@_state_option("failed, unknown, degraded or healthy")
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
@_table_options
def gpus(*, node: str, tenant: str, of_state: str, limit: int, **options: Any) -> None:
    """List the GPUs of all nodes with rail and NIC, worst first; those of the node of an agent.

    The state is the worse of the verdict of the agent and of the open incidents of the GPU, its NIC and its node.
    """
    rail, offset = options["rail"], options["offset"]
    client = _connect(_address(options))
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
@_tenant_option
@_state_option("healthy, degraded or unknown")
@_table_options
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
@_node_option
@_tenant_option
@_table_options
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
@_tenant_option
@_table_options
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
@_json_option
@_connection_options
def top(*, interval: float, once: bool, as_json: bool, **options: Any) -> None:
    """Show a cluster, or the node of an agent, live: nodes, GPUs with NIC and rail, jobs, tenants, incidents, events.

    `?` shows the keys. It needs the extra railscope[top] and a terminal; without the extra, or where the
    output is not a terminal, it prints the first view once, and in a terminal without cursor control
    (TERM=dumb) at each interval.
    """
    address = _address(options)
    pages = create_pages(_connect(address))
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
                f"railscope top: no live view: {error}; fix: pip install 'railscope[top]'", err=True
            )
        else:
            live.run(pages, address.url, interval)
            return
    while True:
        page = pages.read(pages.first())
        page = pages.read(page.permitted) if page.permitted else page
        click.echo(plain_page(page, _width()))
        if once or not (sys.stdout.isatty() and is_dumb):
            sys.exit(UNKNOWN if page.table.absence else 0)
        time.sleep(interval)
        click.echo()


# Contexts ----------------------------------------------------------------------------------------


@click.group()
def context() -> None:
    """Store servers by name, so that a URL is typed once.

    The file is $XDG_CONFIG_HOME/railscope/context.toml, or the file that RAILSCOPE_CONTEXT names. It contains
    the paths of credentials, not the credentials.
    """


@context.command(cls=ClientCommand)
@_json_option
def show(*, as_json: bool) -> None:
    """List the contexts; `*` marks the one in use."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    columns = tuple(
        tables.TableColumn(key, key.upper()) for key in ("used", "name", "server", "token_file")
    )
    rows: Sequence[tables.Row] = [
        {
            "used": "*" if name == found.current else None,
            "name": name,
            "server": server.collector or f"agent {server.agent}",
            "token_file": server.token_file or None,
        }
        for name, server in sorted(found.contexts.items())
    ]
    if as_json:
        click.echo(json.dumps({"file": str(path), "contexts": rows}, indent=1))
        return
    click.echo(
        f"{path}\n{tables.ClientTable('contexts', columns, rows).as_text(_width(), wide=True)}"
    )


@context.command(name="set", cls=ClientCommand)
@click.argument("name")
@_add(*_SERVER_OPTIONS, *_FILE_OPTIONS)
def set_context(name: str, **options: Any) -> None:
    """Store the context NAME, and use it if it is the first server."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    found.contexts[name] = contexts.ServerContext(**options)
    found.current = found.current or name
    contexts.write_contexts(path, found)
    click.echo(f"context {name} stored in {path}; in use: {found.current}")


@context.command(cls=ClientCommand)
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on."""
    path = contexts.default_path()
    found = contexts.read_contexts(path)
    if name not in found.contexts:
        message = f"unknown context {name!r}: expected one of {', '.join(sorted(found.contexts)) or '(none)'} in {path}"
        raise ClientError(message)
    found.current = name
    contexts.write_contexts(path, found)
    click.echo(f"context in use: {name}")
