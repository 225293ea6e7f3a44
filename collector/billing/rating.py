"""Rating: exact charges from usage and prices.

Billable by state of the ledger:

    observed      time and energy
    inferred      time under an allocation tariff, if a witness proves that the node was up and the
                  gap is at most an hour, else for review; under a usage tariff nothing;
                  energy if the counter covers it
    reserved      the reservation
    unclaimed     for review; and use without a tenant or without a SKU
    all others    nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from collector.billing.charges import Charge, Kind, Unit, priced
from collector.billing.minimums import Claims
from collector.billing.prices import Group, Price, PriceBook, Stretch, Tariff, Timeline
from collector.billing.sequence import refuse_doubles, silences
from collector.billing.usage import HELD, WITH_TENANT, Usage
from collector.metering.evidence import Witness
from collector.metering.instants import HOUR_NS, Period, spelled
from collector.metering.tiling import State
from railscope.reading import Absent

SILENCE_LIMIT_NS = HOUR_NS
_TENANTS_TIMES_SKUS = 1 << 16
_NOT_SEEN = "not seen in use, under a tariff of use"


class MissingPriceError(ValueError):
    """Billable usage without a price in the price book; the message contains both."""


@dataclass(frozen=True, slots=True)
class Review:
    """A stretch of usage that is not billed until it is decided; `group` of the prices concerned."""

    usage: Usage
    start_ns: int
    end_ns: int
    reason: str
    group: Group = Group.TIME


@dataclass(frozen=True, slots=True)
class Rating:
    """The charges of a period, undecided use, and use that a usage tariff does not bill."""

    charges: tuple[Charge, ...]
    reviews: tuple[Review, ...]
    free: tuple[Review, ...] = ()


def rate(usages: Iterable[Usage], book: PriceBook, period: Period) -> Rating:
    """Rate the usage of a period.

    Every claim that overlaps the period is expected whole, from its start to its end or to the end
    of the evidence, and so is every observation gap: the length of a gap and the billed time of a
    claim are computed over the whole of it, then clipped to the period. Order does not matter.

    Raises MissingPriceError for time in the period, and DoubleUsageError for time that would be
    billed twice.
    """
    rater = Rater(book, period)
    rating = rater.rate(usages)
    charges = sorted([*rating.charges, *rater.counted.topups()], key=_order)
    return replace(rating, charges=tuple(charges))


def _order(charge: Charge) -> tuple[str, int, str]:
    return charge.tenant, charge.service_t0_ns, charge.charge_id


def _place(usage: Usage) -> tuple[str, int, int, str, str, str]:
    u = usage
    return (u.resource, u.start_ns, u.end_ns, u.tenant, u.claim, u.state)


class Rater:
    """Rating of the GPUs of a period, some at a time.

    Claims for a number of GPUs may be on any GPU of a node, so their minimums are computed last,
    from `counted`.
    """

    def __init__(self, book: PriceBook, period: Period) -> None:
        self.period = period
        self.counted = Claims(period)
        self._placed = Claims(period)
        self._timeline = lru_cache(_TENANTS_TIMES_SKUS)(book.timeline)

    def rate(self, usages: Iterable[Usage]) -> Rating:
        """Rate the whole usage of some GPUs, except for the minimums of counted claims."""
        ordered = sorted(usages, key=_place)
        refuse_doubles(ordered)
        self._placed = Claims(self.period)
        found = [
            outcome
            for usage, silence_ns in zip(ordered, silences(ordered), strict=True)
            for outcome in self._rate(usage, silence_ns)
        ]
        charges = [one for one in found if isinstance(one, Charge)]
        charges.extend(self._placed.topups())
        reviews = [one for one in found if isinstance(one, Review)]
        return Rating(
            tuple(sorted(charges, key=_order)),
            tuple(one for one in reviews if one.reason != _NOT_SEEN),
            tuple(one for one in reviews if one.reason == _NOT_SEEN),
        )

    def _claims_of(self, usage: Usage) -> Claims:
        return self.counted if usage.counted_on else self._placed

    def _rate(self, usage: Usage, silence_ns: int) -> Iterator[Charge | Review]:
        """The charges of one usage in the period, and its undecided parts."""
        if usage.claim:
            self._claims_of(usage).hold(usage)
        reason = _nobodys(usage)
        if reason:
            for start_ns, end_ns in self._spans(usage)[-1:]:
                yield from self._inside(Review(usage, start_ns, end_ns, reason))
        elif usage.state is State.RESERVED:
            for stretch, price in self._stretches(usage, Group.RESERVATION):
                yield from self._inside(_charge(usage, stretch, price))
        elif usage.state in HELD:
            yield from self._time(usage, silence_ns)
            yield from self._energy(usage)

    def _time(self, usage: Usage, silence_ns: int) -> Iterator[Charge | Review]:
        reason = _doubt(usage, silence_ns)
        for stretch, price in self._stretches(usage, Group.TIME):
            if usage.state is State.INFERRED and price.tariff is Tariff.USED:
                yield from self._inside(Review(usage, stretch.start_ns, stretch.end_ns, _NOT_SEEN))
                continue
            if reason:
                yield from self._inside(Review(usage, stretch.start_ns, stretch.end_ns, reason))
                continue
            charge = _charge(usage, stretch, price)
            self._claims_of(usage).bill(usage, charge, price)
            yield from self._inside(charge)

    def _energy(self, usage: Usage) -> Iterator[Charge | Review]:
        energy = usage.energy_millijoules
        for stretch, price in self._stretches(usage, Group.ENERGY):
            if isinstance(energy, int):
                yield from self._inside(_charge(usage, stretch, price))
            elif price.nano:
                reason = f"its energy is not known: {energy.word}"
                span = (stretch.start_ns, stretch.end_ns)
                yield from self._inside(Review(usage, *span, reason, Group.ENERGY))

    def _stretches(self, usage: Usage, group: Group) -> Iterator[tuple[Stretch, Price]]:
        """The usage split at every price boundary and at the start of the period.

        Energy prices may begin at any time; once begun, all prices continue without a gap.
        """
        profile = "" if group is Group.ENERGY else usage.mig_profile
        timeline = self._timeline(usage.tenant, (usage.sku, profile, group))
        for start_ns, end_ns in self._spans(usage):
            for stretch in _split(usage, timeline, start_ns, end_ns):
                if stretch.price is not None:
                    yield stretch, stretch.price
                elif start_ns < self.period.start_ns:
                    continue  # missing prices of an earlier period are not an error here
                elif group is not Group.ENERGY or stretch.start_ns >= timeline.begins_ns:
                    span = f"{spelled(stretch.start_ns)} to {spelled(stretch.end_ns)}"
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

    def _inside(self, outcome: Charge | Review) -> Iterator[Charge | Review]:
        start = outcome.start_ns if isinstance(outcome, Review) else outcome.service_t0_ns
        if start >= self.period.start_ns:
            yield outcome


def _split(usage: Usage, timeline: Timeline, start_ns: int, end_ns: int) -> Iterator[Stretch]:
    """One stretch per price; a single one if the claim keeps the price of its start."""
    if usage.claim:
        price, list_nano = timeline.at(usage.claim_start_ns)
        if price is not None and price.at_claim_start:
            yield Stretch(start_ns, end_ns, price, list_nano)
            return
    yield from timeline.stretches(start_ns, end_ns)


def _nobodys(usage: Usage) -> str:
    """Reason why the use of a GPU cannot be billed to any tenant; empty if it can."""
    if usage.state is State.UNCLAIMED:
        return "processes without a claim"
    if usage.state is State.REVIEW:
        return f"evidence under review: {usage.reason}"
    if usage.state not in WITH_TENANT:
        return ""
    if not usage.tenant:
        return "its tenant is not known"
    return "" if usage.sku else "the model of the GPU is not known, so it has no price"


def _doubt(usage: Usage, silence_ns: int) -> str:
    """Reason why held time needs a decision; empty if it is billable."""
    if usage.state is not State.INFERRED:
        return ""
    if usage.witness is Witness.NONE:
        return "inferred without a witness"
    if max(silence_ns, usage.silence_ns) > SILENCE_LIMIT_NS:
        return f"inferred over a silence of more than {SILENCE_LIMIT_NS // HOUR_NS} h"
    return ""


_KINDS = {Group.TIME: Kind.USAGE, Group.RESERVATION: Kind.RESERVATION, Group.ENERGY: Kind.ENERGY}


def _charge(usage: Usage, stretch: Stretch, price: Price) -> Charge:
    quantity = _quantity(usage, stretch.end_ns - stretch.start_ns, price.unit)
    return Charge(
        tenant=usage.tenant,
        kind=_KINDS[price.tariff.group],
        service_t0_ns=stretch.start_ns,
        service_t1_ns=stretch.end_ns,
        amount=priced(quantity, price.unit, price.nano),
        sku=usage.sku,
        quantity=quantity,
        unit=price.unit,
        price_nano=price.nano,
        list_nano=stretch.list_nano,
        price_version=price.version,
        resource=usage.resource,
        mig_profile=usage.mig_profile,
        claim=usage.claim,
        state=usage.state,
    )


def _quantity(usage: Usage, duration_ns: int, unit: Unit) -> Fraction:
    """Metered units of a part of a usage. Energy is spread evenly over the whole usage."""
    if unit is Unit.KILOWATT_HOURS:
        energy = usage.energy_millijoules
        if isinstance(energy, Absent):
            message = f"energy of {usage} is {energy.word}"
            raise ValueError(message)
        return Fraction(energy * duration_ns, usage.duration_ns)
    held = usage.capacity_units if unit is Unit.GPU_HOURS else usage.instances
    return Fraction(duration_ns * held)
