"""Commands that read a running collector or agent: status, lists, and `top`, which repeats them.

The server decides on states, order and words; a command prints them. Exit status: 0 done (of `status`: healthy),
1 degraded, 2 failed (both of `status` only), 3 unknown.
"""

from __future__ import annotations

import fnmatch
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import click
import msgspec

from railscope import __version__, api
from railscope.api.status import WORST_FIRST, Status, StatusReason, other_reasons, sums
from railscope.client import contexts, text_layout
from railscope.client.columns import (
    LISTINGS,
    Column,
    Row,
    age,
    seconds_since,
    show,
)
from railscope.client.connection import ClientError, ReadClient
from railscope.client.text_layout import table_lines
from railscope.incident_victims import affected_text
from railscope.timestamps import SECOND_NS, format_timestamp, parse_timestamp, utc_text

_Command = TypeVar("_Command", bound=Callable[..., Any])
EXIT = {"healthy": 0, "degraded": 1, "failed": 2, "unknown": 3}
SEVERITIES = ("critical", "warning", "info")
FAILURES = (ClientError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of a request, and of an answer whose content is of another form than that of this release."""
_RECENT_SECONDS = 30.0
_MAX_LISTED = 5
_MAX_ROWS = 1000
_MAX_CAUSE = 200
_WIDTH, _INDENT = 80, " " * 18


class ClientCommand(click.Command):
    """Command that exits with status 3 for every error: the state of the cluster is unknown then."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments."""
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as error:
            error.show()
            sys.exit(EXIT["unknown"])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FAILURES as error:
            click.echo(f"Error: {failure_text(error)}", err=True)
            sys.exit(EXIT["unknown"])


def failure_text(error: Exception) -> str:
    """Return the cause of a failure, and how to fix it, in one line."""
    if isinstance(error, ClientError):
        return error.message
    cause = show(f"{type(error).__name__}: {error}"[:_MAX_CAUSE])
    return f"unexpected content of the answer: {cause}: expected that of version {__version__}; fix: use the command line of the server's release"


# Options -----------------------------------------------------------------------------------------

_SERVER = {
    "--collector": ("URL", "Base URL of a collector. Default: the context in use, else a collector on this host."),
    "--agent": ("URL", "Base URL of an agent, to read one node without a collector."),
    "--token-file": ("FILE", "File that contains a bearer token; other users must not be able to read it."),
    "--ca-file": ("FILE", "CA certificates (PEM) to verify the server. Default: those of the system."),
    "--certificate-file": ("FILE", "Client certificate (PEM)."),
    "--key-file": ("FILE", "Key of the client certificate (PEM). Default: in the certificate's file."),
}  # fmt: skip
_SECONDS = click.FloatRange(0.1, 3600)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def add_options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options in this order."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _text(name: str, metavar: str, about: str) -> Callable[[_Command], _Command]:
    return click.option(name, default="", metavar=metavar, help=about)


server_options = add_options(*(_text(name, *each) for name, each in _SERVER.items()))
connection_options = add_options(
    server_options,
    _text("--context", "NAME", "Context to use; `railscope context show` lists them."),
    click.option(
        "--timeout-seconds",
        type=_SECONDS,
        default=10.0,
        show_default=True,
        help="Limit of one request.",
    ),
)


def open_client(options: Mapping[str, Any]) -> ReadClient:
    """Return a client of the server that options or the context name. Raises ClientError."""
    return ReadClient(contexts.choose_address(options, contexts.default_path()))


def _open_list(options: Mapping[str, Any], name: str) -> ReadClient:
    """Return a client of a server that has a list. Raises ClientError."""
    client = open_client(options)
    if client.address.is_agent and name not in {"nodes", "gpus"}:
        message = f"an agent has no list of {name}; fix: name a collector with --collector URL"
        raise ClientError(message)
    return client


# Text --------------------------------------------------------------------------------------------


def terminal_width() -> int:
    """Return the width of the terminal; 80 where the output is not a terminal."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH


def table_text(columns: Sequence[Column], rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return rows as a table; without `wide`, no line is longer than the terminal."""
    shown = [column for column in columns if wide or not column.is_wide]
    return "\n".join(table_lines(shown, rows, None if wide else terminal_width()))


def wrap(content: str, indent: str) -> list[str]:
    """Return the lines of a text in the terminal; all but the first are indented, and none is cut."""
    return text_layout.wrap(show(content), terminal_width(), indent)


def incident_lines(incidents: Sequence[api.IncidentDocument], now_ns: int) -> Iterator[str]:
    """Yield incidents in full: severity, age and title, then names of the cause, victims, jobs and action."""
    for one in incidents:
        began, evidence = (seconds_since(each, now_ns) for each in (one.onset, one.last_evidence))
        ended = "" if one.ended is None else "  ended"
        head = f"{one.severity:8}  {'' if math.isnan(began) else age(began):>6}{ended}"
        yield from wrap(f"{head}  {one.title}  {one.id}", _INDENT)
        names = ("name", "uuid", "device", "pci_address", "switch", "switch_port")
        is_old = one.ended is None and evidence > _RECENT_SECONDS
        facts = {
            ", ".join(filter(None, (getattr(one.cause, name, "") for name in names))): "{}",
            affected_text(one): "{} affected",
            ", ".join(f"{job.tenant}/{job.workload}" for job in one.jobs): "jobs: {}",
            one.explained_by: "an effect of incident {}",
            one.action: "{}",
            is_old and age(evidence): "last evidence {} ago",
        }
        known = (form.format(fact) for fact, form in facts.items() if fact)
        yield from wrap(_INDENT + "; ".join(known), _INDENT)


# Lists -------------------------------------------------------------------------------------------


def values_of(content: Any, key: str) -> Iterator[str]:
    """Yield the values of a key at any depth: the nodes of an incident are those of its cause and of its victims."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if name in {key, f"{key}s"}:
            several = value if isinstance(value, list) else [value]
            yield from (str(each) for each in several if isinstance(each, str | int))
        yield from values_of(value, key)
    for each in content if isinstance(content, list) else ():
        yield from values_of(each, key)


def unmatched(rows: Sequence[Row], key: str, pattern: str) -> str:
    """Return a text with the values that there are, if none matches a pattern; else nothing."""
    known = sorted({each for row in rows for each in values_of(row, key)})
    if fnmatch.filter(map(str.lower, known), pattern.lower()):
        return ""
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    there = show(known[:_MAX_LISTED]) or "there is none"
    return f"no {key} matches {show(pattern)!r}: {there}{more}"


def read_rows(
    client: ReadClient, name: str, query: Mapping[str, str]
) -> tuple[dict[str, Any], list[Row]]:
    """Return a document with its rows. Raises ClientError, ValidationError."""
    found, sent_ns = client.get_as(dict[str, Any], f"/api/v1/{name}", tuple(query.items()))
    if not found.get("timestamp_ns", sent_ns):
        message = f"{name}: it has not been computed yet; fix: wait until the collector is ready; /-/ready states the reason"
        raise ClientError(message)
    rows = msgspec.convert(found.get(LISTINGS[name].rows), list[dict[str, Any]])
    found["sent_ns"] = sent_ns
    for row in rows if name == "jobs" else ():
        row["runtime_seconds"] = (sent_ns - row["start_ns"]) / SECOND_NS
    return found, list(rows)


def _read_list(
    client: ReadClient, name: str, filters: Mapping[str, str], named: str
) -> tuple[dict[str, Any], list[Row], list[Row], dict[str, str]]:
    """Return a document, its rows, those that the filters select, and of filters that match nothing what there is.

    Raises ClientError; also if `named` is one of these filters.
    """
    served = () if client.address.is_agent else LISTINGS[name].served
    query = {key: pattern for key, pattern in filters.items() if key in served}
    found, rows = read_rows(client, name, query)
    chosen, texts = rows, {}
    for key, pattern in filters.items():
        if key in {*query, "limit", "offset"}:
            continue
        texts[key] = unmatched(rows, key, pattern)
        chosen = [row for row in chosen if not unmatched([row], key, pattern)]
    if named in query and not rows:
        texts[named] = unmatched(read_rows(client, "nodes", {})[1], named, query[named])
    if texts.get(named):
        raise ClientError(texts[named])
    if client.address.is_agent:  # it returns all of its GPUs
        offset = int(filters.get("offset", 0))
        found |= {"found": len(chosen), "offset": offset}
        chosen = chosen[offset:][: int(filters.get("limit", _MAX_ROWS))]
    return found, rows, chosen, texts


def print_list(
    name: str, options: Mapping[str, Any], filters: Mapping[str, str], named: str = ""
) -> str:
    """Print a list, and return its name: that of an agent's nodes is `gpus`. Raises one of FAILURES.

    `named` is the filter that must match.
    """
    as_json = options.get("as_json")
    try:
        client = _open_list(options, name)
        if client.address.is_agent:
            name = "gpus"
        found, rows, chosen, texts = _read_list(client, name, filters, named)
    except FAILURES as error:
        if not as_json:
            raise
        click.echo(json.dumps({name: None, "absence": failure_text(error)}, indent=1))
        if options.get("watch"):
            return name
        sys.exit(EXIT["unknown"])
    listing = LISTINGS[name]
    notes = {key: found[key] for key in ("problem", "suppressed") if found.get(key)}
    offset, total = found.get("offset", 0), found.get("found", len(chosen))
    part = {"found": total, "offset": offset} if "offset" in listing.served else {}
    if as_json:
        click.echo(json.dumps({name: chosen} | part | notes, indent=1))
        return name
    if not chosen:
        click.echo(f"{name}: none" + f" of {len(rows)} matches" * bool(rows))
    elif name == "incidents" and not options.get("wide"):
        shown = msgspec.convert(chosen, list[api.IncidentDocument])
        click.echo("\n".join(incident_lines(shown, found["sent_ns"])))
    else:
        click.echo(table_text(listing.columns, chosen, wide=options.get("wide", False)))
    lines = [text for key, text in texts.items() if text and key not in {"state", "severity"}]
    titles = {"problem": "incidents", "suppressed": "not listed"}
    lines += [f"{titles[key]}: {note}" for key, note in notes.items()]
    if part and total > (end := offset + len(chosen)):
        lines.append(f"{total - end} of {total} follow: --offset {end}")
    for line in lines:
        click.echo("\n".join(wrap(line, "  ")))
    return name


def _list_command(name: str) -> click.Command:
    """Return the command of a list."""
    listing = LISTINGS[name]
    key = listing.options[0]

    def run(chosen: str, **options: Any) -> None:
        selects = (*listing.options, "limit", "offset")
        given = {each: options.get(each) for each in selects}
        filters = {each: str(value) for each, value in given.items() if value not in {None, ""}}
        if chosen and key in filters:
            message = f"invalid argument {chosen!r}: expected either NAME or --{key}"
            raise ClientError(message)
        filters |= {key: chosen} if chosen else {}

        def draw() -> None:
            if name == "incidents" and chosen:
                _print_incident(chosen, options)
                return
            printed = print_list(name, options, filters, key if chosen or key == "node" else "")
            is_one = printed == "nodes" and chosen and not set(chosen) & set("*?[")
            if is_one and not options["as_json"]:
                click.echo()
                print_list("gpus", options, {"node": chosen, "limit": str(_MAX_ROWS)})

        repeat(draw, options["watch"])

    options = [_filter_option(name, each) for each in listing.options if each != "id"]
    if "offset" in listing.served:
        options += _PART_OPTIONS
    options += [
        json_option,
        click.option("--wide", is_flag=True, help="Print all columns in full; lines may be long."),
        click.option(
            "--watch",
            type=_SECONDS,
            metavar="SECONDS",
            help="Print again at this interval, until Ctrl-C.",
        ),
        connection_options,
        click.argument("chosen", default="", metavar="[ID]" if key == "id" else "[NAME]"),
    ]
    return click.command(name, cls=ClientCommand, help=listing.about)(add_options(*options)(run))


_PART_OPTIONS = [
    click.option(
        "--limit",
        type=click.IntRange(1, _MAX_ROWS),
        default=_MAX_ROWS,
        show_default=True,
        help="Number of rows at most.",
    ),
    click.option(
        "--offset", type=click.IntRange(0), help="Number of rows to omit, for the next part."
    ),
]
_ABOUT = {
    "node": "Only of these nodes, such as gpu-*.",
    "rail": "Only on this rail.",
    "tenant": "Only of these tenants.",
    "state": "Only in this state.",
    "severity": "Only of this severity.",
}


def _filter_option(name: str, key: str) -> Callable[[_Command], _Command]:
    """Return the option that selects rows by a key."""
    about = _ABOUT.get(key, f"Only of this {key}.")
    if key == "rail" and key in LISTINGS[name].served:
        return click.option(f"--{key}", type=click.IntRange(0), help=about)
    states = {"incidents": ("open", "closed", "all"), "gpus": WORST_FIRST}
    choices = {"severity": SEVERITIES, "state": states.get(name, ())}.get(key, ())
    if choices:
        return click.option(
            f"--{key}",
            type=click.Choice(choices),
            default="open" if "open" in choices else None,
            callback=lambda *given: given[2] if given[2] != "all" else None,
            help=about,
            show_default="open" in choices,
        )

    def check(_: click.Context, option: click.Parameter, pattern: str) -> str:
        if key == "state" and pattern and not fnmatch.filter(WORST_FIRST, pattern.lower()):
            message = (
                f"{pattern!r}: expected one of {', '.join(WORST_FIRST)}, or a pattern such as f*"
            )
            raise click.BadParameter(message, param=option)
        return pattern

    return click.option(f"--{key}", default="", metavar="PATTERN", callback=check, help=about)


def repeat(draw: Callable[[], None], seconds: float | None) -> None:
    """Print once, or repeatedly: after an error, the next print tries again."""
    while seconds:
        click.clear()
        try:
            draw()
        except FAILURES as error:
            click.echo(f"NO DATA, retrying: {failure_text(error)}")
        time.sleep(seconds)
    draw()


COMMANDS = {name: _list_command(name) for name in LISTINGS}
nodes, gpus, incidents, rails, jobs, tenants, switches, events = COMMANDS.values()


def _victim_text(job: api.JobDocument) -> str:
    return f"{job.tenant}/{job.workload}" + (f" ({job.loss})" if job.loss else "")


def _print_incident(incident_id: str, options: Mapping[str, Any]) -> None:
    """Print one incident with its evidence and commands. Raises ClientError."""
    try:
        path = f"/api/v1/incidents/{quote(incident_id, safe='')}"
        one, _ = _open_list(options, "incidents").get_as(api.IncidentDocument, path)
    except ClientError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        message = f"no incident {incident_id!r}; fix: railscope incidents --state all lists all IDs"
        raise ClientError(message) from error
    if options["as_json"]:
        click.echo(json.dumps({"incidents": [msgspec.to_builtins(one)]}, indent=1))
        return
    lost = one.lost_gpu_time_seconds
    names = ("title", "text", "action", "severity")
    facts = {name: getattr(one, name) for name in names} | {
        "onset": utc_text(parse_timestamp(one.onset)),
        "ended": one.ended and utc_text(parse_timestamp(one.ended)),
        "jobs": ", ".join(map(_victim_text, one.jobs)),
        "affected": affected_text(one),
        "lost GPU-hours": "not known" if lost is None else f"{lost / 3600:,.2f}",
        "explained by": one.explained_by,
    }
    for number, each in enumerate(one.evidence, 1):
        facts[f"evidence {number}"] = each.text or f"{each.device}: {each.signal} {each.value}"
    for name, value in facts.items():
        if value:
            click.echo("\n".join(wrap(f"{name:14}  {value}", " " * 16)))
    for number, step in enumerate(one.commands, 1):
        head = f"{number} {step.step:6}  {step.comment}".rstrip()
        click.echo("\n".join(wrap(head, " " * 10)))
        for command in step.commands:  # not wrapped, so that each line can be copied
            click.echo(f"    {show(command)}")


# Status ------------------------------------------------------------------------------------------


def read_status(options: Mapping[str, Any]) -> tuple[Status, dict[str, str], int]:
    """Return the status of a server, which one it is, and its time; unknown if it does not answer."""
    server = {"server": options["collector"] or options["agent"], "program": ""}
    try:
        client = open_client(options)
        server = {"server": client.address.url, "program": client.address.program}
        found, sent_ns = client.get_as(Status, "/api/v1/status")
        return found, server | {"observed": format_timestamp(sent_ns)}, sent_ns
    except ClientError as error:
        reason = StatusReason("unknown", error.message)
        return Status(status="unknown", reasons=(reason,)), server, 0


def status_lines(found: Status, server: Mapping[str, str], now_ns: int) -> Iterator[str]:
    """Yield a status on one screen."""
    old = "" if found.age_seconds is None else f", data {age(found.age_seconds)} old"
    yield f"{show(found.status).upper()}  {server['program']} {server['server']}{old}"
    reasons = other_reasons(found)
    for reason in reasons:
        yield from wrap(f"  {reason.status}: {reason.text}", "    ")
    yield ""
    for text in sums(found).values():
        yield from wrap(text, "  ")
    stated = " ".join(reason.text for reason in reasons)
    for name, text in found.absent.items():
        yield from wrap(f"{name}: unknown" + f" ({text})" * (text not in stated), "  ")
    if found.open_incidents:
        yield from ("", *incident_lines(found.open_incidents[:_MAX_LISTED], now_ns))
        more = sum((found.incidents or {}).values()) - _MAX_LISTED
        yield from [f"and {more} more: railscope incidents"] if more > 0 else ()


@click.command(cls=ClientCommand)
@json_option
@connection_options
def status(*, as_json: bool, **options: Any) -> None:
    """Print the status of a cluster, or of the node of an agent, on one screen.

    Exit status 0: healthy. 1: degraded; a node is stale, or a warning is open. 2: failed; a critical
    incident is open, or a GPU has failed. 3: unknown; no answer, no or stale data, or an error.
    """
    found, server, now_ns = read_status(options)
    exit_status = EXIT.get(found.status, EXIT["unknown"])
    if as_json:
        content = msgspec.to_builtins(found)
        head = {"status": content.pop("status"), "exit_status": exit_status}
        click.echo(
            json.dumps(head | {"reasons": content.pop("reasons")} | server | content, indent=1)
        )
    else:
        click.echo("\n".join(status_lines(found, server, now_ns)))
    sys.exit(exit_status)


@click.command(cls=ClientCommand)
@click.option(
    "--interval",
    type=_SECONDS,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads.",
)
@click.option("--once", is_flag=True, help="Print once, and end.")
@connection_options
def top(*, interval: float, once: bool, **options: Any) -> None:
    """Show the status with the nodes of a cluster, or the GPUs of an agent's node, repeatedly until Ctrl-C."""

    def draw() -> None:
        found, server, now_ns = read_status(options)
        click.echo("\n".join([*status_lines(found, server, now_ns), ""]))
        has_nodes = found.nodes is not None or server["program"] == "agent"
        print_list("nodes" if has_nodes else "jobs", options, {})

    repeat(draw, None if once or not sys.stdout.isatty() else interval)
