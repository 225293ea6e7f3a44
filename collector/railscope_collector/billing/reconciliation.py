"""Reconciliation: exact comparisons of quantities that must be equal, without tolerance.

R1  per GPU, day and tiling the states in the ledger add up to capacity times time
R2  the cluster's sum is its inventory times time
R3  the scheduler's own records, see `railscope_collector.jobs`
R4  attributed + idle + unattributed amounts in the ledger = counter increments, per GPU and day
R5  ledger, charges, stored invoices, FOCUS rows and the files read back have the same amount
R6  shares of inferred and unknown time, with their bounds
R7  a closed period, computed again from the revisions and the prices of its closing, has the same
    root, and the evidence has the same ledger days
R8  every row equals the hash in its ledger head and in its record in the audit log's outbox
R9  per claim, day and tiling the requested capacity is held by the claim, or moved
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import DAY_NS, format_timestamp
from railscope_collector.audit.ledger_check import (
    compare_ledger,
    read_outbox_records,
    summarize_differences,
)
from railscope_collector.billing import (
    focus_files,
    focus_rows,
    period_closing,
    period_completeness,
    period_rating,
)
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.invoices import (
    Invoice,
    InvoiceStatus,
    PeriodClosing,
    correction_charges,
    draft_invoice,
    draft_invoices,
    manifest_root,
)
from railscope_collector.evidence import gpu_evidence, review_rules
from railscope_collector.files import seller_file
from railscope_collector.ledger import (
    database,
    day_metering,
    day_tiling,
    ledger_store,
    row_conversion,
)
from railscope_collector.metering import holders, measures, timeline
from railscope_collector.metering.evidence import Evidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period, Tiling, Units, exact, period_name


@dataclass(frozen=True, slots=True)
class ReconciliationCheck:
    """A computed sum, its expected value, and the number of parts compared.

    `where` names the part with the largest difference. With a `bound`, the found value is reported
    against it and equality is not required.
    """

    rule: str
    title: str
    found: Fraction
    expected: Fraction
    parts: int = 1
    place: str = ""
    bound: Fraction | None = None

    @property
    def difference(self) -> Fraction:
        """Found minus expected; always zero for a check with a bound."""
        return Fraction(0) if self.bound is not None else self.found - self.expected

    @property
    def passes(self) -> bool:
        """True if there is no difference."""
        return self.difference == 0

    @property
    def is_within_bound(self) -> bool:
        """True if a reported value is within its bound."""
        return self.bound is None or self.found <= self.bound


def worst_check(
    rule: str, title: str, pairs: Iterable[tuple[str, Fraction | int, Fraction | int]]
) -> ReconciliationCheck:
    """Combine many named comparisons into one: that of the largest difference."""
    worst = ReconciliationCheck(rule, title, Fraction(0), Fraction(0))
    parts = 0
    for place, actual, expected in pairs:
        parts += 1
        check = ReconciliationCheck(rule, title, Fraction(actual), Fraction(expected), place=place)
        if abs(check.difference) > abs(worst.difference):
            worst = check
    return ReconciliationCheck(rule, title, worst.found, worst.expected, parts, worst.place)


def check_amounts(
    invoices: Sequence[Invoice], seller: seller_file.Seller
) -> Iterator[ReconciliationCheck]:
    """Compare the payable amount with rounded lines, FOCUS rows and CSV read back."""
    issued = [invoice for invoice in invoices if invoice.status is InvoiceStatus.ISSUED]
    payable = sum((invoice.payable for invoice in issued), Fraction(0))
    lines = sum((Fraction(line.minor) for invoice in issued for line in invoice.lines), Fraction(0))
    minor = sum((Fraction(invoice.total_minor) for invoice in issued), Fraction(0))
    yield ReconciliationCheck("R5", "lines, rounded = invoices", lines, minor, len(issued))
    rows = [row for invoice in issued for row in focus_rows.invoice_rows(invoice, seller)]
    yield ReconciliationCheck(
        "R5", "FOCUS rows = payable", focus_rows.billed_cost(rows), payable, len(rows)
    )
    file = io.BytesIO()
    focus_files.FocusCsvWriter(file).add(rows)
    file.seek(0)
    again = list(focus_files.read_csv(file))
    yield ReconciliationCheck(
        "R5", "CSV, read again = payable", focus_rows.billed_cost(again), payable, len(again)
    )


_Pair = tuple[str, Units, Units]


def evidence_checks(
    ledger: ledger_store.Ledger, evidence: period_completeness.UsageEvidence, period: Period
) -> list[ReconciliationCheck]:
    """Compare the newest ledger revisions of a period with all evidence of it."""
    comparison = _EvidenceComparison()
    days = period_rating.period_days(period)
    newest = ledger.newest(days.start, days.stop)
    by_gpu: dict[str, dict[row_conversion.GpuDay, int]] = defaultdict(dict)
    for key, number in newest.items():
        by_gpu[key.gpu][key] = number
    gpus = evidence.gpus(period.start_ns, period.end_ns)
    for gpu in [*gpus, *sorted(by_gpu.keys() - set(gpus))]:
        inputs = evidence.evidence(gpu, period.start_ns, period.end_ns)
        written = {revision.tiling.day: revision for revision in ledger.revisions(by_gpu[gpu])}
        comparison.compare(inputs, written, days)
    return list(comparison.checks())


class _EvidenceComparison:
    """Pairs of actual and expected ledger values, GPU by GPU."""

    def __init__(self) -> None:
        self._capacity: list[_Pair] = []
        self._found, self._expected = Fraction(0), Fraction(0)
        """Sums found and expected, of GPUs in service."""
        self._requested: list[_Pair] = []
        self._counted: dict[measures.CountedQuantity, list[_Pair]] = defaultdict(list)
        self._roots: list[_Pair] = []

    def compare(
        self,
        inputs: gpu_evidence.AssembledGpu,
        written: dict[int, ledger_store.Revision],
        days: range,
    ) -> None:
        """Compare all days of a GPU."""
        metered = inputs.meter()
        places = [(stay.start_ns, stay.end_ns) for stay in holders.resolve_stays(inputs.evidence)]
        outside = _find_review_time(inputs.evidence, places)
        counted = {measure: _by_day(inputs.counted[measure], days) for measure in inputs.counted}
        for day in days:
            revision = written.get(day)
            name = f"{inputs.evidence.gpu} on {format_timestamp(day * DAY_NS)[:10]}"
            start_ns, end_ns = day * DAY_NS, (day + 1) * DAY_NS
            present, absent = (_overlap_ns(p, start_ns, end_ns) for p in (places, outside))
            for tiling in Tiling:
                self._capacity.append(
                    (f"{name}, {tiling}", _quantity(revision, tiling), GPU_CAPACITY * present)
                )
                self._found += _quantity(revision, tiling) - _quantity(revision, tiling, outside)
                self._expected += GPU_CAPACITY * (present - absent)
            self._claims(revision, name)
            of_day = {measure: amounts.get(day, 0) for measure, amounts in counted.items()}
            self._shares(revision, of_day, name)
            again = metered.day(day, day_metering.MeteringComputation("", 0))
            if revision is not None or again.entries:
                same = revision is not None and revision.content_root == day_tiling.revision_root(
                    again, revision.tiling.capacity_units
                )
                self._roots.append((name, int(same), 1))

    def _claims(self, revision: ledger_store.Revision | None, name: str) -> None:
        """Compare the requested quantity of each claim with the sum of held and moved, by tiling."""
        if revision is None:
            return
        held_by_claim: dict[tuple[str, Tiling], Fraction] = defaultdict(Fraction)
        for entry in revision.tiling.entries:
            held_by_claim[entry.claim, entry.tiling] += Fraction(entry.quantity) / GPU_CAPACITY
        for overlap in revision.tiling.overlaps:
            held_by_claim[overlap.claim, overlap.tiling] += (
                Fraction(overlap.quantity) / GPU_CAPACITY
            )
        for claim in revision.tiling.claims:
            for tiling, requested in zip(Tiling, claim.requested, strict=True):
                if requested:
                    place = f"{name}, {claim.id}, {tiling}"
                    self._requested.append(
                        (place, held_by_claim[claim.id, tiling], Fraction(requested))
                    )

    def _shares(
        self,
        revision: ledger_store.Revision | None,
        counted: dict[measures.CountedQuantity, int],
        name: str,
    ) -> None:
        shared: dict[measures.CountedQuantity, int] = dict.fromkeys(counted, 0)
        for measured in revision.tiling.shares if revision else ():
            shared[measured.measure] = shared.get(measured.measure, 0) + measured.share.amount
        for measure, amount in shared.items():
            self._counted[measure].append((name, amount, counted.get(measure, 0)))

    def checks(self) -> Iterator[ReconciliationCheck]:
        """The comparisons, each as its largest difference."""
        yield worst_check("R1", "states = capacity x time, per GPU, day and tiling", self._capacity)
        yield ReconciliationCheck("R2", "cluster = inventory x time", self._found, self._expected)
        for measure in sorted(self._counted):
            title = f"{measure} attributed + idle + unattributed = counted, per GPU and day"
            yield worst_check("R4", title, self._counted[measure])
        yield worst_check(
            "R9", "requested = held + moved, per claim, day and tiling", self._requested
        )
        yield worst_check(
            "R7", "GPU-days of the ledger = computed again from evidence", self._roots
        )


def _quantity(
    revision: ledger_store.Revision | None,
    tiling: Tiling,
    places: Sequence[tuple[int, int]] | None = None,
) -> Units:
    """Quantity of one tiling of a revision, in total or within disjoint spans."""
    if revision is None:
        return 0
    total = Fraction(0)
    for entry in revision.tiling.entries:
        if entry.tiling is tiling:
            spans = [(entry.t0_ns, entry.t1_ns)] if places is None else places
            time_ns = _overlap_ns(spans, entry.t0_ns, entry.t1_ns)
            total += Fraction(entry.slot_hi - entry.slot_lo) * time_ns
    return exact(total)


def _find_review_time(
    evidence: Evidence, places: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Time within these spans in which the GPU is metered only for claims under review."""
    spans = (
        timeline.TimePiece(max(start, claim.begins_ns), min(end, claim.ceases_ns), 0)
        for claim in evidence.claims
        if claim.review in review_rules.NOT_IN_SERVICE
        for start, end in places
    )
    return [(piece.start_ns, piece.end_ns) for piece in timeline.resolve_overlaps(spans)]


def _overlap_ns(spans: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """Nanoseconds of disjoint spans in [start, end)."""
    return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in spans)


def _by_day(counted: measures.CounterIncrements, days: range) -> dict[int, int]:
    """Counter increments of each day."""
    ends = counted.ends_ns
    picked = (ends > days.start * DAY_NS) & (ends <= days.stop * DAY_NS)
    total_by_day: dict[int, int] = defaultdict(int)
    day_of = (ends[picked] - 1) // DAY_NS
    amounts = counted.amounts[picked]
    for day in np.unique(day_of).tolist():
        total_by_day[day] = sum(amounts[day_of == day].tolist())
    return total_by_day


@dataclass(frozen=True, slots=True)
class RecomputedClosing:
    """Result of a closing, computed again."""

    rated: period_rating.RatedPeriod
    drafts: tuple[Invoice, ...]
    manifest_root: str


def recompute_closing(
    books: period_closing.BillingBooks, closing: PeriodClosing, issued: Iterable[Invoice]
) -> RecomputedClosing:
    """Rate again the revisions and prices of a closing.

    Administrative charges (credits, adjustments) are copied from the invoices that it issued.
    """
    published = books.store.book(closing.price_version)
    if published is None:
        message = f"the ledger lacks version {closing.price_version} of the price book"
        raise database.UnusableLedgerError(message)
    numbers = period_rating.given_revisions(books.store.revisions(closing.number))
    rated = period_rating.rate_period(books.ledger, published.book, closing.period, numbers)
    sources = dict(rated.sources)
    decided = [
        line.charge for invoice in issued for line in invoice.lines if line.charge.unit is None
    ]
    charges = [*rated.charges, *decided]
    if closing.tenant:
        replacements = tuple(_replacement(books, closing, invoice, charges) for invoice in issued)
    else:
        for earlier in closing.corrected:
            recomputed = period_rating.rate_period(books.ledger, published.book, earlier, numbers)
            valid = books.store.valid_invoices(earlier.start_ns, closing)
            charges += correction_charges(
                valid, recomputed.charges, earlier, closing.period.start_ns
            )
            sources |= recomputed.sources
        replacements = draft_invoices(charges, closing.period, closing.currency)
    root = manifest_root(
        closing.period, closing.price_version, period_rating.ledger_root(sources), replacements
    )
    return RecomputedClosing(rated, replacements, root)


def _replacement(
    books: period_closing.BillingBooks,
    closing: PeriodClosing,
    invoice: Invoice,
    charges: Iterable[Charge],
) -> Invoice:
    """The invoice of one tenant, with the corrections of the invoice that it replaces."""
    replaced = books.store.invoice(invoice.replaces)
    lines = replaced[0].lines if replaced else ()
    corrections = [line.charge for line in lines if line.charge.corrects]
    charged = [charge for charge in charges if charge.tenant == closing.tenant]
    return draft_invoice(
        charged + corrections, closing.tenant, closing.period, closing.currency, invoice.replaces
    )


MAX_INFERRED = Fraction(1, 100)
MAX_UNKNOWN = Fraction(1, 1000)


def reconcile_period(
    books: period_closing.BillingBooks, period: Period, seller: seller_file.Seller
) -> list[ReconciliationCheck]:
    """All checks of a period; R1, R2, R4, R7 and R9 compare the ledger with its evidence.

    Raises UnusableLedgerError, ClosingError, MissingPriceError.
    """
    checks = list(check_records(books, period))
    if books.evidence is not None:
        checks += evidence_checks(books.ledger, books.evidence, period)
    closings = [closing for closing in books.store.closings() if closing.period.overlaps(period)]
    for closing in closings:
        checks += closing_checks(books, closing, seller)
    if not closings:
        bill = books.bill(period)
        checks += [
            check_billable_time(bill.rated),
            check_charged_amount(bill.rated.charges, bill.drafts),
        ]
    return sorted(
        [*checks, *check_unobserved_time(books.ledger, period)], key=lambda check: check.rule
    )


def check_records(
    books: period_closing.BillingBooks, period: Period
) -> Iterator[ReconciliationCheck]:
    """R8: rows changed, added or removed by hand; of ledger days, those of the period."""
    with books.ledger.database.transaction() as connection:
        compared = compare_ledger(
            connection, read_outbox_records(connection), period_rating.rating_days(period)
        )
    title = "rows as written, as committed by heads, as recorded"
    rows, wrong = compared.rows.total(), len(compared.differences) + compared.unlisted
    place = summarize_differences(compared)
    yield ReconciliationCheck("R8", title, Fraction(rows - wrong), Fraction(rows), rows, place)


def closing_checks(
    books: period_closing.BillingBooks, closing: PeriodClosing, seller: seller_file.Seller
) -> Iterator[ReconciliationCheck]:
    """R5 and R7 of a closing."""
    issued = books.store.of_closing(closing.number)
    again = recompute_closing(books, closing, issued)
    charged = [charge for charge in again.rated.charges if closing.tenant in ("", charge.tenant)]
    yield check_billable_time(again.rated)
    yield check_charged_amount(charged, issued)
    yield from check_amounts(issued, seller)
    yield from check_recomputed(closing, issued, again)


def check_billable_time(rated: period_rating.RatedPeriod) -> ReconciliationCheck:
    """R5: billable time in the ledger is charged, free by tariff, or undecided."""
    pairs = (
        (", ".join(of), rated.charged_time.get(of, 0), rated.held_time.get(of, 0))
        for of in sorted({*rated.held_time, *rated.charged_time})
    )
    return worst_check(
        "R5", "charges + undecided + free by tariff = ledger, by tenant and state", pairs
    )


def check_charged_amount(
    charges: Sequence[Charge], invoices: Sequence[Invoice]
) -> ReconciliationCheck:
    """R5: the exact amount of the period's use, as rated and as invoiced."""
    exact = sum((charge.amount for charge in charges), Fraction(0))
    billed = [line.charge for invoice in invoices for line in invoice.lines]
    used = [charge.amount for charge in billed if charge.unit and not charge.corrects]
    title = "invoices, exact = charges"
    return ReconciliationCheck("R5", title, sum(used, Fraction(0)), exact, len(charges))


def check_unobserved_time(
    ledger: ledger_store.Ledger, period: Period
) -> Iterator[ReconciliationCheck]:
    """R6: the shares of all GPU time that are inferred and unknown."""
    time: dict[SlotState, Fraction] = dict.fromkeys(SlotState, Fraction(0))
    for total, quantity in ledger.totals(period.start_ns, period.end_ns).items():
        if total.tiling is Tiling.COMPUTE:
            time[total.state] += quantity
    whole = sum(time.values(), Fraction(0))
    for state, bound in ((SlotState.INFERRED, MAX_INFERRED), (SlotState.UNKNOWN, MAX_UNKNOWN)):
        share = time[state] / whole if whole else Fraction(0)
        yield ReconciliationCheck("R6", f"share of {state} time", share, Fraction(0), bound=bound)


def check_recomputed(
    closing: PeriodClosing, issued: Sequence[Invoice], again: RecomputedClosing
) -> Iterator[ReconciliationCheck]:
    """R7: equal roots of the closing and of each of its invoices."""
    name = period_name(closing.period)
    root = int(again.manifest_root == closing.manifest_root)
    yield ReconciliationCheck("R7", f"root of {name}, computed again", Fraction(root), Fraction(1))
    recomputed_hashes = {draft.content_hash for draft in again.drafts}
    expected = {draft.content_hash for draft in issued}
    title = f"invoices of {name}, computed again"
    yield ReconciliationCheck(
        "R7",
        title,
        Fraction(len(recomputed_hashes & expected)),
        Fraction(len(recomputed_hashes | expected)),
        len(expected),
    )
