"""Rating of a period from the ledger: revisions used, and resulting charges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

from railscope.timestamps import DAY_NS
from railscope_collector.billing import price_book
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit
from railscope_collector.billing.ledger_usage import usages_of_days
from railscope_collector.billing.rating import Rater, RatingResult, UsageReview
from railscope_collector.billing.usage import WITH_TENANT, Usage
from railscope_collector.ledger import ledger_store
from railscope_collector.ledger.day_documents import GpuDay, Revision
from railscope_collector.metering import metered_day
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Period, Units, exact

# Bounds the memory that the days of a period take.
_GPUS_AT_ONCE = 64


class LedgerTimeKey(NamedTuple):
    """Key of ledger time: tenant, model and state."""

    tenant: str
    sku: str
    state: SlotState


class SourceRevision(NamedTuple):
    """A ledger revision that a bill was computed from: its number, its hash, and when it was recorded."""

    revision: int
    root: str
    recorded_ns: int


@dataclass(frozen=True, slots=True)
class RatedPeriod:
    """A rated period: its charges, undecided use, and the ledger revisions used.

    `held_time` is the billable compute time in the ledger; `charged_time` is the compute time of the charges,
    of undecided use and of use that is free by tariff; both in cap-unit-nanoseconds.
    """

    period: Period
    charges: tuple[Charge, ...]
    reviews: tuple[UsageReview, ...]
    sources: Mapping[GpuDay, SourceRevision]
    held_time: Mapping[LedgerTimeKey, Units]
    charged_time: Mapping[LedgerTimeKey, Fraction]


def ledger_root(sources: Mapping[GpuDay, SourceRevision]) -> str:
    """SHA-256 in hex over the GPU-days in order, each with its revision and content root."""
    digest = sha256()
    for key in sorted(sources):
        source = sources[key]
        digest.update(f"{key.gpu} {key.day} {source.revision} {source.root}\n".encode())
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


RevisionNumbers = Callable[[range], dict[GpuDay, int]]
"""Revision number of each GPU-day of some days, constant over all calls."""


def newest_revisions(ledger: ledger_store.Ledger) -> RevisionNumbers:
    """Revisions that are the newest at the first call for their day."""
    revisions_by_day: dict[int, dict[GpuDay, int]] = {}

    def numbers(days: range) -> dict[GpuDay, int]:
        new: dict[int, dict[GpuDay, int]] = {day: {} for day in days if day not in revisions_by_day}
        if new:
            revisions_by_day.update(new)
            for key, number in ledger.newest(min(new), max(new) + 1).items():
                if key.day in new:
                    revisions_by_day[key.day][key] = number
        return {key: number for day in days for key, number in revisions_by_day[day].items()}

    return numbers


def given_revisions(numbers: Mapping[GpuDay, int]) -> RevisionNumbers:
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
    sources: dict[GpuDay, SourceRevision] = {}
    held_time: dict[LedgerTimeKey, Units] = defaultdict(int)
    charged_time: dict[LedgerTimeKey, Fraction] = defaultdict(Fraction)
    billed = period_days(period)
    # With minimums, charges depend on what a claim was billed before the period.
    # Without minimums, which most books lack, the days before the period need not be read.
    has_minimums = any((price.minimum_ns, price.granularity_ns) != (0, 1) for price in book.prices)
    rater = Rater(book, period)
    for gpus in _by_gpus(numbers(rating_days(period))):
        revisions = list(ledger.revisions(gpus))
        if has_minimums:
            revisions = [*ledger.revisions(_earlier_days(numbers, revisions, period)), *revisions]
        sources |= dict(map(_source, revisions))
        used = usages_of_days(revision.day for revision in revisions)
        rating = rater.rate(used)
        _add_rated_time(charged_time, rating, used)
        charges += rating.charges
        reviews += rating.reviews
        for revision in revisions:
            if revision.day.day in billed:
                _add_held_time(held_time, revision.day)
                reviews += _unmetered_reviews(revision.day)
    charges.sort(key=lambda charge: (charge.tenant, charge.service_t0_ns, charge.charge_id))
    return RatedPeriod(
        period, tuple(charges), tuple(reviews), sources, dict(held_time), dict(charged_time)
    )


def _by_gpus(
    numbers: Mapping[GpuDay, int],
) -> Iterator[dict[GpuDay, int]]:
    """All days of some GPUs at a time."""
    by_gpu: dict[str, dict[GpuDay, int]] = defaultdict(dict)
    for key, number in numbers.items():
        by_gpu[key.gpu][key] = number
    gpus = sorted(by_gpu)
    for offset in range(0, len(gpus), _GPUS_AT_ONCE):
        yield {
            k: n for gpu in gpus[offset : offset + _GPUS_AT_ONCE] for k, n in by_gpu[gpu].items()
        }


def _earlier_days(
    numbers: RevisionNumbers, revisions: Iterable[Revision], period: Period
) -> dict[GpuDay, int]:
    """Days before the window in which claims of the period were already in force.

    Also if the GPU has no ledger day at the period's start, as it was absent then.
    """
    start_day = period.start_ns // DAY_NS
    since: dict[str, int] = {}
    for revision in revisions:
        day = revision.day
        if day.day >= start_day:
            days = [claim.start_ns // DAY_NS for claim in day.claims]
            since[day.gpu] = min([*days, since.get(day.gpu, start_day)])
    earlier = numbers(range(min(since.values(), default=start_day), start_day - 1))
    return {key: n for key, n in earlier.items() if key.day >= since.get(key.gpu, start_day)}


def _source(revision: Revision) -> tuple[GpuDay, SourceRevision]:
    return revision.key, SourceRevision(revision.number, revision.root, revision.recorded_ns)


def _add_held_time(held_time: dict[LedgerTimeKey, Units], day: metered_day.MeteredDay) -> None:
    for piece in day.pieces:
        for part in piece.parts:
            if part.state in WITH_TENANT:
                key = LedgerTimeKey(part.tenant, day.sku, part.state)
                quantity = part.size * (piece.end_ns - piece.start_ns)
                held_time[key] = exact(held_time[key] + quantity)


def _unmetered_reviews(day: metered_day.MeteredDay) -> Iterator[UsageReview]:
    """Yield the time of claims that holds no GPU: it is listed with its reason, and no charge has it."""
    for each in day.unmetered:
        usage = Usage(
            each.tenant,
            day.gpu,
            day.sku,
            each.start_ns,
            each.end_ns,
            each.size,
            SlotState.UNKNOWN,
            claim=each.claim,
            claim_start_ns=each.start_ns,
        )
        yield UsageReview(usage, each.start_ns, each.end_ns, each.reason)


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
