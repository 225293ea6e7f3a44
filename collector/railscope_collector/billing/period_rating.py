"""Rating of a period from the ledger: revisions used, and resulting charges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

from railscope.timestamps import DAY_NS
from railscope_collector.billing import price_book
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.claim_minimums import ClaimMinimums, CountedClaim
from railscope_collector.billing.ledger_usage import usages_of_days
from railscope_collector.billing.rating import Rater, RatingResult, UsageReview
from railscope_collector.billing.usage import WITH_TENANT, Usage
from railscope_collector.ledger import day_tiling, ledger_store, row_conversion
from railscope_collector.metering import evidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Period, Tiling, Units, exact

# Bounds the memory that the rows of a period take.
_GPUS_AT_ONCE = 64


class LedgerTimeKey(NamedTuple):
    """Key of ledger time: tenant, model and state."""

    tenant: str
    sku: str
    state: SlotState


class SourceRevision(NamedTuple):
    """A ledger revision that a bill was computed from: number, hashes, time and clock marks."""

    revision: int
    content_root: str
    evidence_root: str
    computed_ns: int
    clock_suspect: tuple[evidence.ClockDoubt, ...] = ()


@dataclass(frozen=True, slots=True)
class RatedPeriod:
    """A rated period: its charges, undecided use, and the ledger revisions used.

    `held_time` is the billable compute time in the ledger; `charged_time` is the compute time of the charges,
    of undecided use and of use that is free by tariff; both in cap-unit-nanoseconds.
    """

    period: Period
    charges: tuple[Charge, ...]
    reviews: tuple[UsageReview, ...]
    sources: Mapping[row_conversion.GpuDay, SourceRevision]
    held_time: Mapping[LedgerTimeKey, Units]
    charged_time: Mapping[LedgerTimeKey, Fraction]


def ledger_root(sources: Mapping[row_conversion.GpuDay, SourceRevision]) -> str:
    """SHA-256 in hex over the GPU-days in order, each with its revision and content root."""
    digest = sha256()
    for key in sorted(sources):
        source = sources[key]
        digest.update(f"{key.gpu} {key.day} {source.revision} {source.content_root}\n".encode())
    return digest.hexdigest()


def period_days(period: Period) -> range:
    """The UTC days of a period. Raises ValueError unless it consists of whole days."""
    if period.start_ns % DAY_NS or period.end_ns % DAY_NS:
        message = "invalid period: expected whole UTC days"
        raise ValueError(message)
    return range(period.start_ns // DAY_NS, period.end_ns // DAY_NS)


def rating_days(period: Period) -> range:
    """The days that are read: gaps and claims may extend over the edges of a period."""
    days = period_days(period)
    return range(days.start - 1, days.stop + 1)


RevisionNumbers = Callable[[range], dict[row_conversion.GpuDay, int]]
"""Revision number of each GPU-day of some days, constant over all calls."""


def newest_revisions(ledger: ledger_store.Ledger) -> RevisionNumbers:
    """Revisions that are the newest at the first call for their day."""
    revisions_by_day: dict[int, dict[row_conversion.GpuDay, int]] = {}

    def numbers(days: range) -> dict[row_conversion.GpuDay, int]:
        new: dict[int, dict[row_conversion.GpuDay, int]] = {
            day: {} for day in days if day not in revisions_by_day
        }
        if new:
            revisions_by_day.update(new)
            for key, number in ledger.newest(min(new), max(new) + 1).items():
                if key.day in new:
                    revisions_by_day[key.day][key] = number
        return {key: number for day in days for key, number in revisions_by_day[day].items()}

    return numbers


def given_revisions(numbers: Mapping[row_conversion.GpuDay, int]) -> RevisionNumbers:
    """Exactly these revisions."""
    return lambda days: {key: number for key, number in numbers.items() if key.day in days}


def rate_period(
    ledger: ledger_store.Ledger,
    book: price_book.PriceBook,
    period: Period,
    numbers: RevisionNumbers,
) -> RatedPeriod:
    """Rate a period from revisions of the ledger. Raises MissingPriceError."""
    charges: list[Charge] = []
    reviews: list[UsageReview] = []
    sources: dict[row_conversion.GpuDay, SourceRevision] = {}
    held_time: dict[LedgerTimeKey, Units] = defaultdict(int)
    charged_time: dict[LedgerTimeKey, Fraction] = defaultdict(Fraction)
    billed = period_days(period)
    # With minimums, charges depend on what a claim was billed before the period.
    # Without minimums, which most books lack, the days before the period need not be read.
    has_minimums = any((price.minimum_ns, price.granularity_ns) != (0, 1) for price in book.prices)
    rater = Rater(book, period)
    ended: dict[tuple[str, str], day_tiling.HeldClaim] = {}
    for gpus in _by_gpus(numbers(rating_days(period))):
        revisions = list(ledger.revisions(gpus))
        if has_minimums:
            revisions = [*ledger.revisions(_earlier_days(numbers, revisions, period)), *revisions]
        sources |= dict(map(_source, revisions))
        tilings = [revision.tiling for revision in revisions]
        used = usages_of_days(tilings)
        rating = rater.rate(used)
        _add_rated_time(charged_time, rating, used)
        charges += rating.charges
        reviews += rating.reviews
        for tiling in tilings:
            if tiling.day in billed:
                _add_held_time(held_time, tiling)
                ended |= _find_unused_claims(tiling)
    if has_minimums:
        claims = _CountedClaims(rater.counted, ended)
        for revisions, used in _read_counted_usage(ledger, claims, numbers, sources.keys(), period):
            sources |= dict(map(_source, revisions))
            rater.rate(used)
    charges += rater.counted.topups()
    charges.sort(key=lambda charge: (charge.tenant, charge.service_t0_ns, charge.charge_id))
    return RatedPeriod(
        period, tuple(charges), tuple(reviews), sources, dict(held_time), dict(charged_time)
    )


def _by_gpus(
    numbers: Mapping[row_conversion.GpuDay, int],
) -> Iterator[dict[row_conversion.GpuDay, int]]:
    """All days of some GPUs at a time: only minimums of counted claims depend on other GPUs."""
    by_gpu: dict[str, dict[row_conversion.GpuDay, int]] = defaultdict(dict)
    for key, number in numbers.items():
        by_gpu[key.gpu][key] = number
    gpus = sorted(by_gpu)
    for offset in range(0, len(gpus), _GPUS_AT_ONCE):
        yield {
            k: n for gpu in gpus[offset : offset + _GPUS_AT_ONCE] for k, n in by_gpu[gpu].items()
        }


def _earlier_days(
    numbers: RevisionNumbers, revisions: Iterable[ledger_store.Revision], period: Period
) -> dict[row_conversion.GpuDay, int]:
    """Days before the window in which claims of the period were already in force.

    Also if the GPU has no ledger day at the period's start, as it was absent then.
    """
    start_day = period.start_ns // DAY_NS
    since: dict[str, int] = {}
    for revision in revisions:
        tiling = revision.tiling
        if tiling.day >= start_day:
            days = [claim.start_ns // DAY_NS for claim in tiling.claims]
            since[tiling.gpu] = min([*days, since.get(tiling.gpu, start_day)])
    earlier = numbers(range(min(since.values(), default=start_day), start_day - 1))
    return {key: n for key, n in earlier.items() if key.day >= since.get(key.gpu, start_day)}


class _CountedClaims(NamedTuple):
    """Claims for a number of GPUs: those with usage in the period, and those that end in it."""

    used: ClaimMinimums
    ended: Mapping[tuple[str, str], day_tiling.HeldClaim]
    """Claims by id and node that hold no GPU when they end: their last usage may be long before."""


def _find_unused_claims(
    tiling: day_tiling.DayTiling,
) -> dict[tuple[str, str], day_tiling.HeldClaim]:
    """Claims that end on a GPU-day on which they request and hold nothing, by id and node.

    Only a claim for a number of GPUs has such rows in the ledger: other claims request slots of
    each of their GPUs.
    """
    users = {entry.claim for entry in tiling.entries}
    nodes = {entry.node for entry in tiling.entries}
    return {
        (claim.id, node): claim
        for claim in tiling.claims
        if claim.end_ns is not None and not any(claim.requested) and claim.id not in users
        for node in nodes
    }


def _read_counted_usage(
    ledger: ledger_store.Ledger,
    counted: _CountedClaims,
    numbers: RevisionNumbers,
    current: Collection[row_conversion.GpuDay],
    period: Period,
) -> Iterator[tuple[list[ledger_store.Revision], list[Usage]]]:
    """Revisions of earlier days, with usage of counted claims that end in the period, on any GPU."""
    first_ns = rating_days(period).start * DAY_NS
    begun = counted.used.find_begun(first_ns)
    used_since = {(claim.id, claim.node) for claim in begun}
    ended = {
        key: claim
        for key, claim in counted.ended.items()
        if claim.start_ns < first_ns and key not in used_since
    }
    starts = [*begun.values(), *(claim.start_ns for claim in ended.values())]
    if not starts:
        return
    earlier = numbers(range(min(starts) // DAY_NS, rating_days(period).start))
    missing = {key: number for key, number in earlier.items() if key not in current}
    ids = {claim for claim, _ in (*used_since, *ended)}
    for gpus in _by_gpus(ledger.select_counted(missing, ids)):
        revisions = list(ledger.revisions(gpus))
        used = usages_of_days(revision.tiling for revision in revisions)
        usages = [u for u in used if CountedClaim(u.tenant, u.claim, u.counted_on) in begun]
        usages += [
            replace(u, claim_end_ns=ended[u.claim, u.counted_on].end_ns)
            for u in used
            if (u.claim, u.counted_on) in ended
        ]
        yield revisions, usages


def _source(revision: ledger_store.Revision) -> tuple[row_conversion.GpuDay, SourceRevision]:
    tiling = revision.tiling
    source = SourceRevision(
        revision.number,
        revision.content_root,
        tiling.evidence_root,
        tiling.computed_ns,
        tiling.clock_suspect,
    )
    return row_conversion.GpuDay(tiling.gpu, tiling.day), source


def _add_held_time(held_time: dict[LedgerTimeKey, Units], tiling: day_tiling.DayTiling) -> None:
    for entry in tiling.entries:
        if entry.tiling is Tiling.COMPUTE and entry.state in WITH_TENANT:
            key = LedgerTimeKey(entry.tenant, tiling.sku, entry.state)
            held_time[key] = exact(held_time[key] + entry.quantity)


def _add_rated_time(
    charged_time: dict[LedgerTimeKey, Fraction], rating: RatingResult, used: Iterable[Usage]
) -> None:
    """Add the capacity times time that the outcomes of rating cover."""
    for review in (*rating.reviews, *rating.free):
        usage = review.usage
        if review.group is price_book.PriceGroup.TIME and usage.state in WITH_TENANT:
            length = review.end_ns - review.start_ns
            charged_time[LedgerTimeKey(usage.tenant, usage.sku, usage.state)] += (
                usage.capacity_units * length
            )
    by_holding: dict[tuple[str, str], list[Usage]] = defaultdict(list)
    for usage in used:
        by_holding[usage.resource, usage.claim].append(usage)
    for charge in rating.charges:
        if charge.kind not in (ChargeKind.USAGE, ChargeKind.RESERVATION):
            continue
        quantity = charge.quantity
        if charge.unit is PriceUnit.INSTANCE_HOURS:
            length = charge.service_t1_ns - charge.service_t0_ns
            quantity = length * next(
                Fraction(usage.capacity_units)
                for usage in by_holding[charge.resource, charge.claim]
                if usage.start_ns <= charge.service_t0_ns < usage.end_ns
            )
        charged_time[LedgerTimeKey(charge.tenant, charge.sku, SlotState(charge.state))] += quantity
