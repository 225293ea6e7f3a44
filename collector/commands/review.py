"""`railscope bill review`, `accept` and `reject`: decisions about evidence under review."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

import click

from collector.commands.opening import Place, deciding_command, ledger_command
from collector.evidence.decisions import Decision, Waiting, decide, waiting
from collector.evidence.store import EvidenceStore
from collector.ledger.database import Database
from collector.metering.instants import HOUR_NS, spelled


def _waiting(database: Database, now_ns: int) -> list[Waiting]:
    return waiting(EvidenceStore(database), database, now_ns)


def _hours(one: Waiting) -> str:
    """GPU-hours, rounded down to six decimals."""
    micro = one.gpu_ns * 1_000_000 / HOUR_NS
    return f"{Decimal(micro.numerator // micro.denominator) / 1_000_000:.6f}"


def _row(one: Waiting) -> dict[str, object]:
    return {
        "id": one.subject.id,
        "what": one.subject.what.value,
        "node": one.subject.node,
        "name": one.subject.name,
        "gpus": list(one.gpus),
        "tenants": list(one.tenants),
        "reasons": list(one.reasons),
        "start": spelled(one.start_ns),
        "end": spelled(one.end_ns),
        "gpu_hours": _hours(one),
    }


@click.command("review")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@ledger_command
def review_command(place: Place, form: str) -> None:
    """List evidence that waits for a decision: late claims and ends, unexpected GPUs."""
    with place.books() as books:
        found = _waiting(books.ledger.database, place.by.now_ns)
    if form == "json":
        click.echo(json.dumps([_row(one) for one in found], indent=2))
        return
    for one in found:
        span = f"{spelled(one.start_ns)} to {spelled(one.end_ns)}"
        what = f"{one.subject.what.value} {one.subject.name} on {one.subject.node}"
        gpus = ", ".join(one.gpus) or "GPUs without their names"
        tenants = ", ".join(one.tenants) or "no tenant"
        click.echo(f"{one.subject.id}  {what}: {_hours(one)} GPU-hours, {tenants}, {span}")
        click.echo(f"              {gpus}: {', '.join(one.reasons) or 'no claim yet'}")
    remedy = "; decide with `railscope bill accept|reject ID`" if found else ""
    click.echo(f"{len(found)} waiting{remedy}")


def _decide(place: Place, names: Sequence[str], node: str, reason: str, *, accepted: bool) -> None:
    by = place.by
    with place.books() as books:
        database = books.ledger.database
        found = _waiting(database, by.now_ns)
        chosen = [
            one for one in found if one.subject.id in names or (node and one.subject.node == node)
        ]
        unknown = sorted(set(names) - {one.subject.id for one in found})
        if unknown:
            message = f"{unknown[0]}: expected the id of something that waits; see `railscope bill review`"
            raise click.ClickException(message)
        if not chosen:
            message = "nothing chosen: expected IDs or --node with something that waits"
            raise click.ClickException(message)
        decide(database, chosen, Decision(accepted, by.actor, by.now_ns, reason))
    verdict = "accepted" if accepted else "rejected"
    for one in chosen:
        what = f"{one.subject.what.value} {one.subject.name} on {one.subject.node}"
        click.echo(f"{verdict} {one.subject.id}: {what}, {_hours(one)} GPU-hours")
    click.echo("the collector writes new revisions of the days it is about")


_IDS = click.argument("names", metavar="ID...", nargs=-1)
_NODE = click.option(
    "--node", default="", help="Select all evidence of this node that is under review."
)
_REASON = click.option("--reason", default="", help="Reason; recorded.")


@click.command("accept")
@_IDS
@_NODE
@_REASON
@deciding_command
def accept_command(place: Place, names: tuple[str, ...], node: str, reason: str) -> None:
    """Accept evidence under review, so that it counts as reported."""
    _decide(place, names, node, reason, accepted=True)


@click.command("reject")
@_IDS
@_NODE
@_REASON
@deciding_command
def reject_command(place: Place, names: tuple[str, ...], node: str, reason: str) -> None:
    """Reject evidence under review: it holds no time."""
    _decide(place, names, node, reason, accepted=False)
