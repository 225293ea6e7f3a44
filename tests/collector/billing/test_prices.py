"""Price books: valid files, the price that applies, and the unchanged past."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from support.billing import SKU, books, price

from railscope.timestamps import DAY_NS, HOUR_NS, SECOND_NS, format_timestamp
from railscope_collector.billing.charges import PriceUnit
from railscope_collector.billing.price_book import (
    Price,
    PriceBook,
    PriceBookError,
    PriceGroup,
    Tariff,
)
from railscope_collector.billing.price_book_file import __doc__ as format_of_files, parse_price_book
from railscope_collector.billing.price_book_versions import check_appended

EUR = 10**9
HEAD = 'version = 2\npublished = 2026-06-20T09:00:00Z\ncurrency = "EUR"\n'
ENTRY = """[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = 2_490_000_000
from = 2026-01-01T00:00:00Z
version = 1
"""


def test_the_example_of_the_format_is_a_book():
    assert format_of_files is not None
    example = "\n".join(
        line.strip() for line in format_of_files.split("Further keys")[0].splitlines()[2:]
    )
    read = parse_price_book(example, "prices.toml")
    (only,) = read.prices
    assert (read.version, read.currency, only.nano) == (2, "EUR", 2_490_000_000)
    assert (format_timestamp(only.from_ns), format_timestamp(only.to_ns)) == (
        "2026-01-01T00:00:00Z",
        "2026-07-01T00:00:00Z",
    )


def test_every_key_of_a_price_is_read():
    text = (
        HEAD
        + ENTRY.replace("gpu_hour", "instance_hour")
        + (
            'to = 2026-02-01T01:00:00+01:00\ntenant = "team-a"\nmig_profile = "1g.10gb"\n'
            "minimum_seconds = 60\ngranularity_seconds = 1\nat_claim_start = true\n"
        )
    )
    (read,) = parse_price_book(text, "prices.toml").prices
    january = 31 * DAY_NS
    assert read.to_ns - read.from_ns == january
    assert read == Price(
        "h100",
        Tariff.ALLOCATED,
        2_490_000_000,
        read.from_ns,
        read.from_ns + january,
        "team-a",
        "1g.10gb",
        PriceUnit.INSTANCE_HOURS,
        1,
        60 * SECOND_NS,
        SECOND_NS,
        at_claim_start=True,
    )


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("version = ", "prices.toml: invalid TOML"),
        (HEAD.replace("EUR", "XYZ"), "prices.toml: unknown currency 'XYZ'"),
        ("version = 2\n", "prices.toml, line 1: missing published"),
        (
            HEAD.replace("published", "printed"),
            "prices.toml, line 2: unknown key printed: expected one of version, published,",
        ),
        (HEAD.replace("09:00:00Z", "09:00:00"), "timezone"),
        (
            HEAD + ENTRY + ENTRY.replace("2_490_000_000", "2.49"),
            "prices.toml, line 13: [[price]] number 2: nano_per_gpu_hour 2.49: expected `int",
        ),
        (
            HEAD + ENTRY.replace("2_490_000_000", "-1"),
            "[[price]] number 1: nano_per_gpu_hour -1: expected `int` >= 0",
        ),
        (
            HEAD + ENTRY.replace("2_490_000_000", str(1 << 63)),
            "expected at most 64",
        ),
        (
            HEAD.replace("version = 2", f"version = {10**20}"),
            "expected at most 64",
        ),
        (
            HEAD + ENTRY.replace("nano_per_gpu_hour", "price"),
            "[[price]] number 1: unknown key price: expected one of sku, tariff,",
        ),
        (
            HEAD + ENTRY.replace("allocated", "rented"),
            "prices.toml, line 6: [[price]] number 1: tariff 'rented': expected one of allocated, used, reservation, energy",
        ),
        (HEAD + ENTRY + "nano_per_kilowatt_hour = 1\n", "h100, allocated: 2 prices"),
        (
            HEAD + ENTRY.replace("2_490_000_000", "1").replace("_gpu_", "_instance_"),
            "a MIG profile",
        ),
        (HEAD + ENTRY.replace("allocated", "energy"), "expected a price per kilowatt-hour"),
        (HEAD + ENTRY + "to = 2026-01-01T00:00:00Z\n", "expected an end after the start"),
        (HEAD + ENTRY.replace("version = 1", "version = 3"), "version 3: expected 1 to 2"),
        (
            HEAD + ENTRY + ENTRY.replace("01-01", "02-01"),
            "expected a start at or after the end of h100, alloc",
        ),
        (
            HEAD + ENTRY + ENTRY.replace("allocated", "used"),
            "expected a start at or after the end of",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_table(text, expected_text):
    with pytest.raises(PriceBookError) as caught:
        parse_price_book(text, "prices.toml")
    assert "price book prices.toml" in str(caught.value)
    assert expected_text in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nano": 2.49}, {"nano": -1}, {"nano": True}, {"minimum_ns": -1}, {"granularity_ns": 0},
        {"from_ns": 1.0}, {"unit": PriceUnit.INSTANCE_HOURS}, {"unit": PriceUnit.KILOWATT_HOURS},
        {"tariff": Tariff.ENERGY}, {"tariff": Tariff.RESERVATION, "minimum_ns": 1},
        {"tariff": Tariff.ENERGY, "unit": PriceUnit.KILOWATT_HOURS, "mig_profile": "1g.10gb"},
    ],
)  # fmt: skip
def test_a_price_that_cannot_be_is_rejected(wrong):
    with pytest.raises(PriceBookError, match=SKU):
        replace(price(EUR), **wrong)


@given(books(), st.integers(-DAY_NS, 40 * DAY_NS), st.sampled_from(["team-a", "team-b"]))
def test_at_every_instant_the_tenants_own_price_applies_or_else_the_listed(prices, instant, tenant):
    key = (SKU, "", PriceGroup.TIME)
    found, list_nano = prices.timeline(tenant, key).price_at(instant)
    valid = [p for p in prices.prices if p.key == key and p.from_ns <= instant < p.to_ns]
    own = [p for p in valid if p.tenant == tenant]
    (listed,) = [p for p in valid if not p.tenant]
    assert found == (own or [listed])[0]
    assert list_nano == listed.nano


@given(books(), st.integers(-DAY_NS, 30 * DAY_NS), st.integers(1, 40 * DAY_NS))
def test_intervals_are_whole_and_each_has_one_price_throughout(prices, start, length):
    timeline = prices.timeline("team-a", (SKU, "", PriceGroup.TIME))
    intervals = list(timeline.intervals(start, start + length))
    assert [s.start_ns for s in intervals] == [start, *(s.end_ns for s in intervals[:-1])]
    assert intervals[-1].end_ns == start + length
    for interval in intervals:
        assert (
            timeline.price_at(interval.start_ns)
            == timeline.price_at(interval.end_ns - 1)
            == (interval.price, interval.list_nano)
        )


# Versions --------------------------------------------------------------------------------------


def versions(*after: Price, published_ns: int = DAY_NS) -> tuple[PriceBook, PriceBook]:
    before = PriceBook(1, 0, "EUR", (price(EUR, 0, 2 * DAY_NS), price(2 * EUR, 2 * DAY_NS)))
    return before, PriceBook(2, published_ns, "EUR", after)


FIRST, SECOND = price(EUR, 0, 2 * DAY_NS), price(2 * EUR, 2 * DAY_NS)


@pytest.mark.parametrize(
    "after",
    [
        (FIRST, SECOND),
        (FIRST, SECOND, price(EUR, DAY_NS, tenant="team-a", version=2)),
        (FIRST,),
        (FIRST, price(3 * EUR, 2 * DAY_NS, version=2)),
        (replace(FIRST, to_ns=DAY_NS), price(3 * EUR, DAY_NS, version=2)),
        (FIRST, replace(SECOND, to_ns=3 * DAY_NS), price(4 * EUR, 3 * DAY_NS, version=2)),
    ],
    ids=["same", "tenant", "withdrawn", "changed ahead", "ended", "ended ahead"],
)
def test_a_new_version_may_add_end_and_change_what_is_yet_to_come(after):
    check_appended(*versions(*after))


@pytest.mark.parametrize(
    ("after", "expected_text"),
    [
        ((SECOND,), "from 1970-01-01T00:00:00Z: missing, although it was valid before"),
        ((replace(FIRST, nano=1), SECOND), "changed, although it was valid before"),
        ((replace(FIRST, minimum_ns=HOUR_NS), SECOND), "changed, although it was valid before"),
        ((replace(FIRST, version=2), SECOND), "changed, although it was valid before"),
        ((replace(FIRST, tariff=Tariff.USED), SECOND), "changed, although it was valid before"),
        ((replace(FIRST, to_ns=DAY_NS - 1), SECOND), "its end is changed in the past"),
        ((FIRST, SECOND, price(1, DAY_NS - 1, tenant="team-a", version=2)), "tenant team-a"),
        ((FIRST, SECOND, price(1, DAY_NS, tenant="team-a")), "not 1"),
        ((FIRST, replace(SECOND, nano=1)), "changed in version 2: expected version = 2, not 1"),
    ],
)
def test_a_new_version_may_not_change_the_past_and_the_entry_is_named(after, expected_text):
    with pytest.raises(PriceBookError) as caught:
        check_appended(*versions(*after))
    assert expected_text in str(caught.value)
    assert SKU in str(caught.value)


def test_versions_follow_each_other_in_one_currency():
    before, after = versions(FIRST, SECOND)
    for wrong in (
        replace(after, version=1),
        replace(after, published_ns=-1),
        replace(after, currency="USD"),
    ):
        with pytest.raises(PriceBookError, match=r"version 1|currency .* USD"):
            check_appended(before, wrong)


@given(books(), books(), st.integers(-DAY_NS, 31 * DAY_NS), st.integers(0, 31 * DAY_NS))
def test_what_is_accepted_leaves_every_price_of_the_past(one, other, instant, published):
    """Any part of another book takes effect from its publication on, or is rejected."""
    kept = [replace(p, to_ns=min(p.to_ns, published)) for p in one.prices if p.from_ns < published]
    ahead = [
        replace(p, from_ns=max(p.from_ns, published), version=2)
        for p in other.prices
        if p.to_ns > published
    ]
    before = replace(one, published_ns=-DAY_NS)
    after = PriceBook(2, published, one.currency, (*kept, *ahead))
    check_appended(before, after)
    for group in PriceGroup:
        for tenant in ("team-a", "team-b"):
            past = min(instant, published - 1)
            key = (SKU, "", group)
            (old, listed), (new, still) = (
                version.timeline(tenant, key).price_at(past) for version in (before, after)
            )
            assert old is not None
            assert new is not None
            assert (replace(old, to_ns=new.to_ns), listed) == (new, still)


def test_instants_are_exact():
    for moment, expected_text in (
        (1, "1970-01-01T00:00:00Z"),
        (1_000_001_000, "1970-01-01T00:00:01.000001Z"),
    ):
        assert format_timestamp(moment) == expected_text
    (read,) = parse_price_book(
        HEAD + ENTRY.replace("00:00:00Z", "00:00:00.000001Z"), "prices.toml"
    ).prices
    assert read.from_ns % SECOND_NS == 1_000
