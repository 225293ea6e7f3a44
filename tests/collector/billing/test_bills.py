"""Bills as text: prices, usage, and every line that follows.

    price MILLI SPAN key=...      a [[price]] in thousandths of the currency; a SPAN is FROM-TO in hours since 1970, either may be missing
    use SPAN key=...              usage of one GPU by team-a in claim c1, observed
    bill SPAN                     prints the bill of a period: charges, `review` for undecided use, `free` for use without a charge
    version NUMBER key=...        begins the next version of the price book; the prices below it are all of its prices
    publish                       prints `accepted`, or why the book cannot follow the published one
    with OLD => NEW               prints the problem of an example price book in which OLD is NEW

A command states, and a printed line has, only what differs from the usual. The usual price is of an h100, allocated, per GPU-hour,
for all tenants, in version 1. The usual usage is of team-a in claim c1, observed, on the whole GPU `a`, an h100. The usual charge is
at the list price of 1000, in GPU-hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from support.stories import Story

from railscope.reading import Absent
from railscope.timestamps import HOUR_NS, format_timestamp
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.price_book import PriceBook, PriceBookError
from railscope_collector.billing.price_book_file import parse_price_book
from railscope_collector.billing.price_book_versions import check_appended
from railscope_collector.billing.rating import UsageReview, rate
from railscope_collector.billing.usage import Usage
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Period

USUAL: dict[str, Any] = {
    "tenant": "team-a", "sku": "h100", "capacity_units": 840, "state": SlotState.OBSERVED, "claim": "c1", "resource": "a",
}  # fmt: skip
SHORT = {
    "gpu": "resource", "mig": "mig_profile", "size": "capacity_units", "instance": "instance_units", "energy": "energy_millijoules",
    "evidence": "node_evidence", "since": "claim_start_ns", "gap": "gap_ns", "until": "claim_end_ns",
}  # fmt: skip
EXAMPLE = """version = 2
published = 2026-06-20T09:00:00Z
currency = "EUR"
[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = 2_490_000_000
from = 2026-01-01T00:00:00Z
version = 1
"""


def ns(hours: str) -> int:
    return int(Fraction(hours) * HOUR_NS)


def span(text: str) -> tuple[str, str]:
    start, end = re.fullmatch(r"(-?[\d./]*)-([\d./]*)", text).groups()  # type: ignore[union-attr]
    return start, end


def printed(line: Charge | UsageReview, word: str = "review") -> str:
    """One line of a bill, without what is usual."""
    about: Any = line.usage if isinstance(line, UsageReview) else line
    if isinstance(line, UsageReview):
        words, times = [word], (line.start_ns, line.end_ns)
    else:
        words, times = [line.kind.value], (line.service_t0_ns, line.service_t1_ns)
    words.append("-".join(str(Fraction(time, HOUR_NS)) for time in times))
    if isinstance(line, Charge):
        words.append(str(line.amount))
        words += [f"@{Fraction(line.price_nano, 10**6)}"] * (line.price_nano != 10**9)
        words += [f"list={Fraction(line.list_nano, 10**6)}"] * (line.list_nano != line.price_nano)
        words += [f"v{line.price_version}"] * (line.price_version != 1)
        words += [line.unit.label] * (line.unit is not None and line.unit.label != "GPU-Hours")
    for name, key in (("resource", "gpu"), ("tenant", "tenant"), ("claim", "claim"), ("mig_profile", "mig"), ("sku", "sku")):  # fmt: skip
        words += [f"{key}={getattr(about, name)}"] * (getattr(about, name) != USUAL.get(name, ""))
    words += [f"state={about.state}"] * (str(about.state) not in {"observed", ""})
    if isinstance(line, UsageReview):
        words += [line.reason] + [f"({line.group.value})"] * (line.group.value != "time")
    return " ".join(words)


@dataclass
class Played:
    """A price book and usage."""

    head: str = 'version = 1\npublished = 1970-01-01T00:00:00Z\ncurrency = "EUR"\n'
    prices: str = ""
    uses: list[dict[str, Any]] = field(default_factory=list)
    published: PriceBook | None = None

    def run(self, command: str) -> list[str]:
        name, _, rest = command.partition(" ")
        if name == "with":
            return self.wrong_file(rest)
        words = rest.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        return getattr(self, name)(*(w for w in words if "=" not in w), **options) or []

    def price(self, milli: str, when: str, **more: str) -> None:
        given = {"sku": "h100", "tariff": "allocated", "version": "1", "unit": "gpu_hour"} | more
        start, end = span(when)
        self.prices += f"[[price]]\nnano_per_{given.pop('unit')} = {int(milli) * 10**6}\n"
        self.prices += f"from = {format_timestamp(ns(start or '-90000'))}\n"
        self.prices += f"to = {format_timestamp(ns(end))}\n" if end else ""
        for key, value in given.items():
            is_plain = key.endswith(("seconds", "start", "version"))
            self.prices += f"{key} = {value}\n" if is_plain else f'{key} = "{value}"\n'

    def use(self, when: str, **more: str) -> None:
        start, end = map(ns, span(when))
        given: dict[str, Any] = USUAL | {"start_ns": start, "end_ns": end}
        for key, value in more.items():
            name = SHORT.get(key, key)
            given[name] = (
                SlotState(value) if name == "state"
                else NodeEvidence[value] if name == "node_evidence"
                else ns(value) if name.endswith("_ns")
                else Absent[value] if name == "energy_millijoules" and value.isupper()
                else Fraction(value) if re.fullmatch(r"\d+/\d+", value)
                else float(value) if re.fullmatch(r"\d+\.\d+", value)
                else int(value) if re.fullmatch(r"-?\d+", value)
                else value
            )  # fmt: skip
        self.uses.append(given)

    def book(self) -> PriceBook:
        versions = [
            int(found) for found in re.findall(r"^version = (\d+)$", self.prices, re.MULTILINE)
        ]
        number = max(
            [int(re.search(r"version = (\d+)", self.head)[1]), *versions * (not self.published)]
        )  # type: ignore[index]
        head = re.sub(r"version = \d+", f"version = {number}", self.head)
        return parse_price_book(head + self.prices, "prices.toml")

    def bill(self, when: str) -> list[str]:
        try:
            rated = rate(
                [Usage(**each) for each in self.uses], self.book(), Period(*map(ns, span(when)))
            )
        except ValueError as error:
            return [f"error {error}"]
        lines = [*map(printed, rated.charges), *map(printed, rated.reviews)]
        return sorted(lines + [printed(each, "free") for each in rated.free])

    def version(self, number: str, published: str = "0", currency: str = "EUR") -> None:
        self.head = f'version = {number}\npublished = {format_timestamp(ns(published))}\ncurrency = "{currency}"\n'
        self.prices = ""

    def publish(self) -> list[str]:
        before, self.published = self.published, self.book()
        try:
            if before:
                check_appended(before, self.published)
        except PriceBookError as error:
            return [str(error)]
        return ["accepted"] if before else []

    @staticmethod
    def wrong_file(change: str) -> list[str]:
        old, _, new = (part.strip().replace("\\n", "\n") for part in change.partition("=>"))
        assert old in EXAMPLE
        try:
            parse_price_book(EXAMPLE.replace(old, new, 1), "prices.toml")
        except PriceBookError as error:
            return [str(error)]
        return []


def test_bill(story: Story) -> None:
    story.play(Played().run)
