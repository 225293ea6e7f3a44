"""Books as text: what is known about GPUs, the periods that are closed, and every invoice.

Times are hours after 2024-10-04; the periods 1, 2 and 3 are of three days each. Each GPU draws 500 W.

    gpu NAME CLAIM... key=...      evidence of a GPU from now on; a CLAIM is TENANT@FROM-TO[,share=1/2][,profile=P][,node=N]
                                   uncounted: the GPU has no energy counter
                                   seen=FROM-TO,...: spans with samples, each of another boot
                                   in=NODE:FROM-TO,...: nodes that contain the GPU
                                   out=FROM-TO: an outage that was not announced
                                   kept=TENANT@FROM-TO: a reservation of the tenant
    ends GPU TENANT@FROM TIME      the end of a claim that had none before
    days COUNT                     only the first days are metered
    prices KEY=VALUE... | TOML     other terms of the price of time; `published` and `version` are those of the book
    close PERIOD [provisional]     prints each invoice and what it leaves undecided, or why it is not closed
    void TENANT PERIOD
    credit|adjust TENANT AMOUNT PERIOD [force]
    opening HOUR                   the first billed day
    pending                        what the next closing corrects
    owed                           the exact amounts of valid invoices, by tenant
    statement TENANT PERIOD        its marks and proofs of the days that it rests on
    reconcile PERIOD               the checks that do not pass
    records                        new records for the audit log

Each closing is computed again, with the same result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace
from support import books as world
from support.books import FIRST_DAY, START, AssembledGpu, SimulatedEvidence, hours
from support.gpu_evidence import ClaimRelease, NodeStay, PartitionLayout
from support.stories import Story

from railscope.timestamps import DAY_NS
from railscope_collector.billing import administration, invoices
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.closing_recomputation import recompute_closing
from railscope_collector.billing.closing_record import ClosingError
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.price_book import PriceBookError
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.evidence import GpuOutage, MeteredClaim, SlotReservation
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import CapacityRange, compute_slices
from railscope_collector.tables import metadata

PERIODS = {"1": world.ONE, "2": world.TWO, "3": world.THREE}
MIG = compute_slices(0, 3)


def span(text: str) -> tuple[int, int]:
    start, end = text.split("-")
    return hours(float(start)), hours(float(end or 10**4))


def spans(text: str) -> list[tuple[int, int]]:
    return [span(each) for each in text.split(",") if each]


def number(amount: Fraction) -> str:
    return f"{float(amount):.4f}".rstrip("0").rstrip(".")


def claim(text: str) -> MeteredClaim:
    """Return TENANT@FROM-TO,key=value."""
    (tenant, when), *options = text.split(",", maxsplit=1)[0].split("@"), *text.split(",")[1:]
    start, _, end = when.partition("-")
    more: dict[str, Any] = {}
    for key, value in (option.split("=") for option in options):
        if key == "profile":
            more |= {"compute": MIG, "profile": "3g.40gb"}
        else:
            more[key] = Fraction(value) if key == "share" else value
    more |= {"exclusive": False} if "share" in more else {}
    return world.claim(tenant, float(start), float(end) if end else None, **more)


def lines_of(invoice: invoices.Invoice) -> str:
    """Return the lines of an invoice, summed up by kind, and its total."""
    quantities, amounts = Counter[str](), Counter[str]()
    for charge in (line.charge for line in invoice.lines):
        name = " ".join(filter(None, [
            "corrected" if charge.corrects else "", charge.kind.value, charge.mig_profile, charge.note,
            charge.unit.label if charge.unit not in {None, PriceUnit.GPU_HOURS} else "",
        ]))  # fmt: skip
        quantities[name] += charge.quantity / charge.unit.size if charge.unit else 0
        amounts[name] += charge.amount
    words = [
        f"{name} {number(quantities[name])} = {number(amounts[name])}" for name in sorted(amounts)
    ]
    return f"{invoice.tenant} {float(invoice.payable):.2f} {invoice.currency}: " + ", ".join(words)


@dataclass
class Played:
    """Evidence of GPUs, and the books of its ledger."""

    ledger: Ledger
    known: dict[str, AssembledGpu] = field(default_factory=dict)
    days: int = 10
    text: str = world.PRICES
    is_metered: bool = False
    is_published: bool = False
    recorded: int = 0

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        try:
            return getattr(self, "_" + name)(*words) or []
        except (ClosingError, PriceBookError) as error:
            return [f"error {error}"]

    # Evidence and prices

    def _gpu(self, name: str, *words: str) -> None:
        claims = [claim(word) for word in words if "@" in word and not word.startswith("kept=")]
        given = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
        more: dict[str, Any] = {}
        if "seen" in given:
            seen = spans(given["seen"])
            more["sample_spans"] = tuple(
                BootSampleSpan(f"boot-{i}", first - DAY_NS * (i == 0), last) for i, (first, last) in enumerate(seen)
            )  # fmt: skip
        if "in" in given:
            stays = [each.split(":") for each in given["in"].split(",")]
            more["stays"] = tuple(
                NodeStay(span(when)[0], node, span(when)[1]) for node, when in stays
            )
        if "out" in given:
            more["outages"] = (GpuOutage(False, *span(given["out"])),)  # noqa: FBT003 - not announced
        if "kept" in given:
            tenant, when = given["kept"].split("@")
            more["reservations"] = (SlotReservation(span(when)[0], "kept", tenant, span(when)[1]),)
        if any(one.profile for one in claims):
            more["layouts"] = (PartitionLayout(START, "l1", ((MIG, CapacityRange(0, 420)),)),)
        one = world.gpu(name, *claims, **more)
        counted = {} if "uncounted" in words else one.counted
        self.known[name] = AssembledGpu(one.evidence, counted, one.skus)
        self.is_metered = False

    def _ends(self, name: str, which: str, time: str) -> None:
        one = self.known[name]
        release = ClaimRelease(which.replace("@", "-"), hours(float(time)))
        evidence = replace(one.evidence, releases=(*one.evidence.releases, release))
        self.known[name] = AssembledGpu(evidence, one.counted, one.skus)
        self.is_metered = False

    def _days(self, count: str) -> None:
        self.days, self.is_metered = int(count), False

    def _prices(self, *words: str) -> list[str]:
        text, _, further = " ".join(words).partition("|")
        for key, value in (word.split("=") for word in text.split()):
            if key in {"published", "version"}:
                self.text = re.sub(
                    rf"^{key} = .*", f"{key} = {value}", self.text, count=1, flags=re.MULTILINE
                )
            else:
                old = "nano_per_gpu_hour = 2_490_000_000"
                kept = re.sub(rf"\n{key} = .*", "", self.text, count=1)
                self.text = kept.replace(old, f"{old}\n{key} = {value}", 1)
        if further:
            self.text += f'[[price]]\nsku = "h100"\nversion = 1\nfrom = 2024-01-01T00:00:00Z\n{further.replace("|", chr(10))}\n'
        self.is_published = False
        return []

    @property
    def books(self) -> BillingBooks:
        """The books, once everything that is known is in the ledger."""
        evidence = SimulatedEvidence(dict(self.known))
        if not self.is_metered:
            days = range(FIRST_DAY, FIRST_DAY + self.days)
            recorded_ns = (FIRST_DAY + self.days + 1) * DAY_NS
            written = [each.day(day) for each in self.known.values() for day in days]
            self.ledger.write_days(written, recorded_ns)
            self.is_metered = True
        return BillingBooks.for_ledger(self.ledger, evidence)

    def open(self, by: TimedActor) -> BillingBooks:
        """The books, with prices."""
        books = self.books
        if not self.is_published:
            administration.publish(books, self.text, "prices.toml", by)
            self.is_published = True
        return books

    # Closings and bills

    def _close(self, period: str, how: str = "") -> list[str]:
        of = PERIODS[period]
        by = world.manager_after(of)
        closed = self.open(by).close(of, by, provisional=bool(how))
        again = recompute_closing(self.books, closed.closing, closed.invoices)
        assert again.manifest_root == closed.closing.manifest_root
        undecided = Counter[str]()
        for review in self.books.store.reviews(closed.closing.number):
            undecided[f"{review.tenant}: {review.reason}"] += review.gpu_hours
        rows = [
            f"undecided {number(amount)} h of {name}".replace(" 0 h of", "")
            for name, amount in sorted(undecided.items())
        ]
        return [
            *map(lines_of, closed.invoices),
            *rows,
            *(["closed before"] if not closed.added else []),
        ]

    def invoice(self, tenant: str, period: str) -> str:
        """Return the id of the newest invoice."""
        found = self.books.store.invoices(PERIODS[period], tenant)
        return found[-1].invoice_id if found else "inv-0"

    def _void(self, tenant: str, period: str) -> None:
        by = world.manager_after(PERIODS[period])
        administration.void(self.books, self.invoice(tenant, period), "wrong", by)

    def record(self, charge: object, period: str, force: Iterable[str]) -> list[str]:
        by = world.manager_after(PERIODS[period])
        added, _ = administration.record(self.open(by), charge, by, force="force" in force)
        return [] if added else ["recorded before"]

    def _credit(self, tenant: str, amount: str, period: str, *force: str) -> list[str]:
        charge = invoices.credit_charge(tenant, Fraction(amount), PERIODS[period], "sorry")
        return self.record(charge, period, force)

    def _adjust(self, tenant: str, amount: str, period: str, *force: str) -> list[str]:
        charge = invoices.adjustment_charge(tenant, Fraction(amount), PERIODS[period], "phone")
        return self.record(charge, period, force)

    def _opening(self, hour: str) -> None:
        by = world.manager_after(world.TWO)
        administration.set_opening(self.open(by), hours(float(hour)), "the contract begins", by)

    def _pending(self) -> list[str]:
        found = self.books.find_pending()
        return [
            f"{each.tenant} {each.kind.value} {number(each.amount)}"
            for _, some in found.corrections
            for each in some
        ]

    def _owed(self) -> list[str]:
        return [
            f"{tenant} {number(amount)}"
            for tenant, amount in sorted(world.exact_amounts(self.books.store.invoices()).items())
        ]

    def _statement(self, tenant: str, period: str) -> list[str]:
        found = read_statement(self.books, tenant, PERIODS[period])
        return [f"total {found.total}", *found.marks]

    def _reconcile(self, period: str) -> list[str]:
        checks = reconcile_period(self.books, PERIODS[period], world.SELLER)
        assert {check.rule for check in checks} >= {"R1", "R2", "R7"}
        return [
            f"{check.rule} {check.title}: {check.place}" for check in checks if not check.passes
        ]

    def _records(self) -> list[str]:
        found = world.in_outbox(self.ledger.database)
        new, self.recorded = found[self.recorded :], len(found)
        return [name.split("/")[0] for name in new]


@pytest.fixture
def played() -> Iterator[Played]:
    ledger = Ledger.open("sqlite://", metadata)
    yield Played(ledger)
    ledger.close()


def test_books(story: Story, played: Played) -> None:
    story.play(played.run)
