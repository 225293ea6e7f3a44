"""Published versions of the price book, which are append-only: see `check_appended`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from railscope.timestamps import format_timestamp
from railscope_collector.billing.price_book import Price, PriceBook, PriceBookError, price_place

# Versions --------------------------------------------------------------------------------------


def check_published(book: PriceBook, now_ns: int) -> None:
    """Reject a book that is dated in the future as the current one. Raises PriceBookError."""
    if book.published_ns > now_ns:
        message = (
            f"invalid publication of price book version {book.version}: "
            f"{format_timestamp(book.published_ns)}: expected a time up to now, "
            f"{format_timestamp(now_ns)}; fix: date the book today, and start later prices"
            " with their `from`"
        )
        raise PriceBookError(message)


def check_appended(before: PriceBook, after: PriceBook) -> None:
    """Reject a new version of a book that changes past prices of the previous one.

    The past is the time before the new version's publication. Prices may be added from then on, and
    prices that start later may be ended, changed or withdrawn. Raises PriceBookError that names the
    entry.
    """
    if after.version <= before.version or after.published_ns < before.published_ns:
        message = (
            f"invalid price book version {after.version}: expected a later version and publication"
            f" than those of version {before.version}"
        )
        raise PriceBookError(message)
    if after.currency != before.currency:
        message = (
            f"invalid currency of price book version {after.version}: {after.currency}: expected "
            f"{before.currency}, the currency of the book"
        )
        raise PriceBookError(message)
    old, new = _by_place(before), _by_place(after)
    for place in sorted(old.keys() | new.keys()):
        wrong = _change_of_past(old.get(place), new.get(place), after)
        if wrong:
            message = f"invalid change of a price: {new.get(place) or old[place]}: {wrong}"
            raise PriceBookError(message)


def _by_place(book: PriceBook) -> Mapping[tuple[str, str, str, str, int], Price]:
    return {price_place(price): price for price in book.prices}


def _change_of_past(old: Price | None, new: Price | None, after: PriceBook) -> str:
    """Description of an invalid change in a version; empty if there is none."""
    published = after.published_ns
    if old is None or new is None:
        return _change_of_set(old, new, after)
    rest = replace(old, to_ns=new.to_ns) != new
    if old.from_ns >= published:
        wrong = rest and new.version != after.version
        return f"changed in {_expected_version(new, after)}" if wrong else ""
    if rest:
        return f"changed, although it was valid before {format_timestamp(published)}"
    if old.to_ns != new.to_ns and min(old.to_ns, new.to_ns) < published:
        return (
            f"its end is changed in the past: {format_timestamp(old.to_ns)} to "
            f"{format_timestamp(new.to_ns)}"
        )
    return ""


def _change_of_set(old: Price | None, new: Price | None, after: PriceBook) -> str:
    published = after.published_ns
    if old is not None and old.from_ns < published:
        return f"missing, although it was valid before {format_timestamp(published)}"
    if new is not None and new.from_ns < published:
        return (
            f"added with a start before {format_timestamp(published)}, the publication of the book"
        )
    if new is not None and new.version != after.version:
        return f"added in {_expected_version(new, after)}"
    return ""


def _expected_version(price: Price, book: PriceBook) -> str:
    return f"version {book.version}: expected version = {book.version}, not {price.version}"
