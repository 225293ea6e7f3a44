"""A statement for a person: an invoice's lines drawn together, its total, and what is undecided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from collector.billing.charges import NANO, Charge, Unit
from collector.billing.instants import Period, spelled
from collector.billing.invoice import Invoice
from collector.billing.rating import Review
from collector.billing.rounding import exponent_of, to_minor

_QUANTITY_PLACES = 6
_HEAD = ("what", "of", "state", "from", "to", "GPUs", "quantity", "", "unit price", "amount")
_RIGHT = {5, 6, 8, 9}


class _Matter(NamedTuple):
    """What lines share that are drawn together."""

    kind: str
    sku: str
    state: str
    unit: Unit | None
    price_nano: int
    note: str
    corrects: str


def statement(invoice: Invoice, reviews: Iterable[Review] = ()) -> str:
    """An invoice as text: lines of one kind and price as one, exact to the decimals shown.

    The amounts shown are those of the rounded lines, so that they add up to the total as printed.
    """
    places = exponent_of(invoice.currency)
    drawn: dict[_Matter, list[tuple[Charge, int]]] = {}
    for line in invoice.lines:
        drawn.setdefault(_matter(line.charge), []).append((line.charge, line.minor))
    rows = [_row(matter, drawn[matter], places) for matter in sorted(drawn, key=_place)]
    span = f"{spelled(invoice.period.start_ns)} to {spelled(invoice.period.end_ns)}"
    total = _decimal(invoice.payable, places)
    own = [
        review
        for review in reviews
        if review.usage.tenant == invoice.tenant
        and Period(review.start_ns, review.end_ns).overlaps(invoice.period)
    ]
    return "\n".join(
        [
            f"STATEMENT  {invoice.tenant}  {span}",
            f"{invoice.invoice_id}  {invoice.status}  content {invoice.content_hash}",
            "",
            *_table([_HEAD, *rows]),
            "",
            f"To pay: {total} {invoice.currency}",
            *(["Not billed until somebody decides:", *undecided(own)] if own else []),
        ]
    )


def _matter(charge: Charge) -> _Matter:
    note = charge.note or charge.mig_profile
    return _Matter(
        charge.kind, charge.sku, charge.state, charge.unit, charge.price_nano, note, charge.corrects
    )


def _place(matter: _Matter) -> tuple[str, ...]:
    unit = matter.unit.label if matter.unit else ""
    price = f"{matter.price_nano:020d}"
    return (matter.corrects, matter.kind, matter.sku, unit, price, matter.state, matter.note)


def _row(matter: _Matter, lines: Sequence[tuple[Charge, int]], places: int) -> tuple[str, ...]:
    charges = [charge for charge, _ in lines]
    quantity = sum((charge.quantity for charge in charges), Fraction(0))
    unit = matter.unit
    return (
        f"{matter.kind}, correction" if matter.corrects else matter.kind,
        " ".join(part for part in (matter.sku, matter.note) if part),
        matter.state,
        spelled(min(charge.service_t0_ns for charge in charges)),
        spelled(max(charge.service_t1_ns for charge in charges)),
        str(len({charge.resource for charge in charges if charge.resource})),
        _decimal(quantity / unit.size, _QUANTITY_PLACES) if unit else "",
        unit.label if unit else "",
        _decimal(Fraction(matter.price_nano, NANO), 9).rstrip("0").rstrip(".") if unit else "",
        _decimal(Fraction(sum(minor for _, minor in lines), 10**places), places),
    )


def undecided(reviews: Iterable[Review]) -> list[str]:
    """What is not billed, a line each, in order of resource and time."""
    ordered = sorted(reviews, key=lambda review: (review.usage.resource, review.start_ns))
    return [
        f"  {one.usage.resource}, {spelled(one.start_ns)} to {spelled(one.end_ns)}: {one.reason}"
        for one in ordered
    ]


def _decimal(value: Fraction, places: int) -> str:
    """A fraction with so many decimals, half to even."""
    scaled = to_minor(value, places)
    sign, digits = "-" if scaled < 0 else "", str(abs(scaled)).rjust(places + 1, "0")
    whole = f"{int(digits[: len(digits) - places]):,}"
    return f"{sign}{whole}.{digits[-places:]}" if places else f"{sign}{whole}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(size) if at in _RIGHT else cell.ljust(size)
            for at, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ).rstrip()
        for row in rows
    ]
