"""`railscope bill overlaps`: time that claims requested and did not hold, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import click
from sqlalchemy import select

from collector.billing.rounding import decimal
from collector.billing.statement_text import table
from collector.commands.opening import Place, ledger_command, period_argument
from collector.jobs.report import counted
from collector.ledger.database import Database
from collector.ledger.queries import overlapping
from collector.ledger.rows import overlap_of
from collector.ledger.schema import overlaps, revisions
from collector.metering.instants import Period, spelled
from collector.metering.overlaps import Overlap
from collector.metering.units import GPU_CAPACITY, Tiling

_NS = 1_000_000_000
_PLACES = 9


class GpuOverlap(NamedTuple):
    """An overlap of compute time, and its GPU."""

    gpu: str
    overlap: Overlap

    @property
    def gpu_seconds(self) -> Fraction:
        """Time that moved, in seconds of whole GPUs."""
        return Fraction(self.overlap.quantity) / GPU_CAPACITY / _NS


def read(database: Database, period: Period) -> Iterator[GpuOverlap]:
    """Overlaps of compute time in a period by GPU and start, from newest revisions."""
    columns = select(overlaps, revisions.c.capacity_units)
    query = overlapping(columns, period.start_ns, period.end_ns).where(
        overlaps.c.tiling == Tiling.COMPUTE.value
    )
    with database.transaction() as connection:
        rows = connection.execute(query).all()
    for row in sorted(rows, key=lambda row: (row.gpu_uuid, row.t0_ns, row.claim_id)):
        yield GpuOverlap(row.gpu_uuid, overlap_of(row, row.capacity_units))


@click.command("overlaps")
@period_argument()
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Output format.",
)  # fmt: skip
@ledger_command
def overlaps_command(place: Place, period: Period, form: str) -> None:
    """List the GPU-seconds of PERIOD that claims requested and others held, and the total."""
    with place.books() as books:
        found = list(read(books.store.database, period))
    if form == "json":
        click.echo(json.dumps([_document(one) for one in found], indent=2))
        return
    rows: list[tuple[str, ...]] = [
        ("GPU", "from", "to", "kind", "requested by", "held by", "GPU-seconds")
    ]
    rows += (_row(one) for one in found)
    for line in table(rows, {6}) if found else ():
        click.echo(line)
    total = sum((one.gpu_seconds for one in found), Fraction(0))
    click.echo(f"{counted(len(found), 'overlap')}, {decimal(total, _PLACES)} GPU-seconds moved")


def _row(one: GpuOverlap) -> tuple[str, ...]:
    moved = one.overlap
    return (
        one.gpu, spelled(moved.start_ns), spelled(moved.end_ns), moved.kind.value,
        f"{moved.claim} ({moved.tenant})", f"{moved.other} ({moved.other_tenant})",
        decimal(one.gpu_seconds, _PLACES),
    )  # fmt: skip


def _document(one: GpuOverlap) -> dict[str, Any]:
    moved = one.overlap
    return {
        "gpu": one.gpu, "start_ns": str(moved.start_ns), "end_ns": str(moved.end_ns),
        "kind": moved.kind.value, "claim": moved.claim, "tenant": moved.tenant,
        "other_claim": moved.other, "other_tenant": moved.other_tenant,
        "gpu_seconds": str(one.gpu_seconds), "ratio": str(moved.ratio),
    }  # fmt: skip
