"""Rating: exact charges from usage and prices.

Billable by state of the ledger:

    observed      time and energy
    inferred      time under an allocation tariff, if there is evidence that the node was up and the
                  gap is at most an hour, else for review; under a usage tariff nothing;
                  energy if the counter covers it
    reserved      the reservation
    unclaimed     for review; and use without a tenant or without a SKU
    all others    nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter

from railscope import reading
from railscope.timestamps import HOUR_NS, format_timestamp
from railscope_collector.billing import BillingError, price_book
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit, price_quantity
from railscope_collector.billing.claim_minimums import ClaimMinimums
from railscope_collector.billing.usage import WITH_TENANT, Usage, gap_lengths, reject_double_usage
from railscope_collector.metering import evidence, slot_state, units
from railscope_collector.metering.gpu_timeline import MAX_BILLED_GAP_NS

_MAX_TIMELINES = 1 << 16
"""Timelines that are kept, one for each tenant and SKU: each usage needs one, which is built from all prices."""
_NOT_IN_USE = "not observed in use, under a tariff by use"


class MissingPriceError(BillingError, ValueError):
    """Billable usage without a price in the price book; the message contains both."""


@dataclass(frozen=True, slots=True)
class UsageReview:
    """An interval of usage that is not billed until it is decided; `group` of the prices concerned."""

    usage: Usage
    start_ns: int
    end_ns: int
    reason: str
    group: price_book.PriceGroup = price_book.PriceGroup.TIME


@dataclass(frozen=True, slots=True)
class RatingResult:
    """The charges of a period, undecided use, and use that a usage tariff does not bill."""

    charges: tuple[Charge, ...]
    reviews: tuple[UsageReview, ...]
    free: tuple[UsageReview, ...] = ()


def rate(usages: Iterable[Usage], book: price_book.PriceBook, period: units.Period) -> RatingResult:
    """Rate the usage of a period.

    Every claim that overlaps the period is expected whole, from its start to its end or to the end
    of the evidence, and so is every observation gap: the length of a gap and the billed time of a
    claim are computed over the whole of it, then clipped to the period. Order does not matter.

    Raises MissingPriceError for time in the period, and DoubleUsageError for time that would be
    billed twice.
    """
    return Rater(book, period).rate(usages)


def _charge_order(charge: Charge) -> tuple[str, int, str]:
    return charge.tenant, charge.service_t0_ns, charge.charge_id


class Rater:
    """Rating of the GPUs of a period, some at a time."""

    def __init__(self, book: price_book.PriceBook, period: units.Period) -> None:
        self.period = period
        self._minimums = ClaimMinimums(period)
        self._timeline = lru_cache(_MAX_TIMELINES)(book.timeline)

    def rate(self, usages: Iterable[Usage]) -> RatingResult:
        """Rate the whole usage of some GPUs."""
        in_order = attrgetter("resource", "start_ns", "end_ns", "tenant", "claim", "state")
        ordered = sorted(usages, key=in_order)
        reject_double_usage(ordered)
        # Of these GPUs only: minimums on a device do not depend on others.
        self._minimums = ClaimMinimums(self.period)
        all_charges = [
            outcome
            for usage, gap_ns in zip(ordered, gap_lengths(ordered), strict=True)
            for outcome in self._rate(usage, gap_ns)
            if self._is_inside(outcome)
        ]
        charges = [charge for charge in all_charges if isinstance(charge, Charge)]
        charges.extend(self._minimums.topups())
        reviews = [review for review in all_charges if isinstance(review, UsageReview)]
        return RatingResult(
            tuple(sorted(charges, key=_charge_order)),
            tuple(review for review in reviews if review.reason != _NOT_IN_USE),
            tuple(review for review in reviews if review.reason == _NOT_IN_USE),
        )

    def _rate(self, usage: Usage, gap_ns: int) -> Iterator[Charge | UsageReview]:
        """The charges of one usage in the period, and its undecided parts."""
        # Before it is rated, and also if it is not billed: the end of a claim follows from all of its usage.
        if usage.claim:
            self._minimums.add_usage(usage)
        reason = _unbillable_reason(usage)
        if reason:
            # Only the last span, which is the one in the period: the one before it was reviewed then.
            for start_ns, end_ns in self._spans(usage)[-1:]:
                yield UsageReview(usage, start_ns, end_ns, reason)
        elif usage.state is slot_state.SlotState.RESERVED:
            for interval, price in self._priced_intervals(usage, price_book.PriceGroup.RESERVATION):
                yield _charge(usage, interval, price)
        elif usage.state in slot_state.HELD_STATES:
            yield from self._time(usage, gap_ns)
            yield from self._energy(usage)

    def _time(self, usage: Usage, gap_ns: int) -> Iterator[Charge | UsageReview]:
        reason = _review_reason(usage, gap_ns)
        for interval, price in self._priced_intervals(usage, price_book.PriceGroup.TIME):
            unused = (
                usage.state is slot_state.SlotState.INFERRED
                and price.tariff is price_book.Tariff.USED
            )
            if unused or reason:
                why = _NOT_IN_USE if unused else reason
                yield UsageReview(usage, interval.start_ns, interval.end_ns, why)
                continue
            charge = _charge(usage, interval, price)
            self._minimums.add_charge(usage, charge, price)
            yield charge

    def _energy(self, usage: Usage) -> Iterator[Charge | UsageReview]:
        energy = usage.energy_millijoules
        for interval, price in self._priced_intervals(usage, price_book.PriceGroup.ENERGY):
            if isinstance(energy, int):
                yield _charge(usage, interval, price)
            # At a price of zero nothing needs a decision.
            elif price.nano:
                reason = f"its energy is unknown: {energy.label}"
                span = (interval.start_ns, interval.end_ns)
                yield UsageReview(usage, *span, reason, price_book.PriceGroup.ENERGY)

    def _priced_intervals(
        self, usage: Usage, group: price_book.PriceGroup
    ) -> Iterator[tuple[price_book.PriceInterval, price_book.Price]]:
        """The usage split at every price boundary and at the start of the period.

        Energy prices may begin at any time; once begun, all prices continue without a gap.
        """
        profile = "" if group is price_book.PriceGroup.ENERGY else usage.mig_profile
        timeline = self._timeline(usage.tenant, (usage.sku, profile, group))
        for start_ns, end_ns in self._spans(usage):
            for interval in _split(usage, timeline, start_ns, end_ns):
                if interval.price is not None:
                    yield interval, interval.price
                elif start_ns < self.period.start_ns:
                    continue  # missing prices of an earlier period are not an error here
                elif (
                    group is not price_book.PriceGroup.ENERGY
                    or interval.start_ns >= timeline.begins_ns
                ):
                    span = f"{format_timestamp(interval.start_ns)} to {format_timestamp(interval.end_ns)}"
                    message = f"no price of {group.value} from {span} for {usage}"
                    raise MissingPriceError(message)

    def _spans(self, usage: Usage) -> list[tuple[int, int]]:
        """The usage up to the end of the period, split at the start of the period."""
        starts, ends = self.period.start_ns, self.period.end_ns
        spans = [
            (usage.start_ns, min(usage.end_ns, starts)),
            (max(usage.start_ns, starts), min(usage.end_ns, ends)),
        ]
        return [(start, end) for start, end in spans if start < end]

    def _is_inside(self, outcome: Charge | UsageReview) -> bool:
        start = outcome.start_ns if isinstance(outcome, UsageReview) else outcome.service_t0_ns
        return start >= self.period.start_ns


def _split(
    usage: Usage, timeline: price_book.PriceTimeline, start_ns: int, end_ns: int
) -> Iterator[price_book.PriceInterval]:
    """One interval per price; a single one if the claim keeps the price of its start."""
    # A reservation is no claim: the ledger does not have its start.
    if usage.claim and usage.state is not slot_state.SlotState.RESERVED:
        price, list_nano = timeline.price_at(usage.claim_start_ns)
        if price is not None and price.at_claim_start:
            yield price_book.PriceInterval(start_ns, end_ns, price, list_nano)
            return
    yield from timeline.intervals(start_ns, end_ns)


def _unbillable_reason(usage: Usage) -> str:
    """Reason why the use of a GPU cannot be billed to any tenant; empty if it can."""
    if usage.state is slot_state.SlotState.UNCLAIMED:
        return "processes without a claim"
    if usage.state is slot_state.SlotState.REVIEW:
        return f"evidence under review: {usage.reason}"
    if usage.state not in WITH_TENANT:
        return ""
    if not usage.tenant:
        return "its tenant is unknown"
    return "" if usage.sku else "the model of the GPU is unknown, so it has no price"


def _review_reason(usage: Usage, gap_ns: int) -> str:
    """Reason why held time needs a decision; empty if it is billable."""
    if usage.state is not slot_state.SlotState.INFERRED:
        return ""
    # First: of a longer gap no day states a sign of the node.
    if max(gap_ns, usage.gap_ns) > MAX_BILLED_GAP_NS:
        return f"inferred over a gap of more than {MAX_BILLED_GAP_NS // HOUR_NS} h"
    if usage.node_evidence is evidence.NodeEvidence.NONE:
        return "inferred without evidence that the node was running"
    return ""


_KINDS = {
    price_book.PriceGroup.TIME: ChargeKind.USAGE,
    price_book.PriceGroup.RESERVATION: ChargeKind.RESERVATION,
    price_book.PriceGroup.ENERGY: ChargeKind.ENERGY,
}


def _charge(usage: Usage, interval: price_book.PriceInterval, price: price_book.Price) -> Charge:
    quantity = _quantity(usage, interval.end_ns - interval.start_ns, price.unit)
    return Charge(
        tenant=usage.tenant,
        kind=_KINDS[price.tariff.group],
        service_t0_ns=interval.start_ns,
        service_t1_ns=interval.end_ns,
        amount=price_quantity(quantity, price.unit, price.nano),
        sku=usage.sku,
        quantity=quantity,
        unit=price.unit,
        price_nano=price.nano,
        list_nano=interval.list_nano,
        price_version=price.version,
        resource=usage.resource,
        mig_profile=usage.mig_profile,
        claim=usage.claim,
        state=usage.state,
    )


def _quantity(usage: Usage, duration_ns: int, unit: PriceUnit) -> Fraction:
    """Metered units of a part of a usage. Energy is spread evenly over the whole usage."""
    if unit is PriceUnit.KILOWATT_HOURS:
        energy = usage.energy_millijoules
        if isinstance(energy, reading.Absent):
            message = f"energy of {usage} is {energy.label}"
            raise ValueError(message)
        return Fraction(energy * duration_ns, usage.duration_ns)
    size = usage.capacity_units if unit is PriceUnit.GPU_HOURS else usage.instances
    return Fraction(duration_ns * size)
