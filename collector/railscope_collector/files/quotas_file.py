"""The quotas and budgets of tenants, which are reported with their use and not enforced.

CSV with the columns tenant, gpu_hours, period, gpus, from, to. `period` is
day or month, of UTC. `gpu_hours` and `gpus` may be decimal fractions, or empty for no bound; times as
in the claims file. Of two rows of a tenant and period that are in force, the one that began later
counts. An optional column `budget` is the amount that the tenant may be charged per month, in the
currency of the price book.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from railscope import timestamps, untrusted_text
from railscope_collector.files import watched_file

QUOTAS_HEADER = ("tenant", "gpu_hours", "period", "gpus", "from", "to")
BUDGET_COLUMN = "budget"
MONTH = "month"
QUOTA_PERIODS = ("day", MONTH)


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a tenant in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    period: str
    gpu_hours: Fraction | None
    gpus: Fraction | None
    budget: Fraction | None = None
    """Charges per month, in the currency of the price book."""

    @property
    def gpu_time_ns(self) -> Fraction | None:
        """GPU time per period."""
        return None if self.gpu_hours is None else self.gpu_hours * timestamps.HOUR_NS


@dataclass(frozen=True, slots=True)
class Quotas:
    """All rows of the file, by start."""

    quotas: tuple[Quota, ...] = ()

    def in_force(self, timestamp_ns: int) -> Iterator[Quota]:
        """Yield the quota of each tenant and period at a timestamp."""
        quotas: dict[tuple[str, str], Quota] = {}
        for quota in self.quotas:
            if quota.start_ns <= timestamp_ns < quota.end_ns:
                # In order of start: the later row replaces the earlier one.
                quotas[quota.tenant, quota.period] = quota
        yield from quotas.values()

    def find_budget(self, tenant: str, timestamp_ns: int) -> Fraction | None:
        """Return the budget of a tenant at a timestamp; None if it has none."""
        row_key = (tenant, MONTH)
        in_force = self.in_force(timestamp_ns)
        return next((row.budget for row in in_force if (row.tenant, row.period) == row_key), None)


def parse_quotas(text: str) -> Quotas:
    """Parse the text of a file. Raises FileError that names the line."""
    parsed = []
    for number, (tenant, gpu_hours, period, gpus, start, end, budget) in watched_file.read_rows(
        text, QUOTAS_HEADER, BUDGET_COLUMN
    ):
        location = f"line {number}"
        if not tenant or period not in QUOTA_PERIODS:
            message = f"invalid quota: {location}: tenant {tenant!r}, period {period!r}: expected a tenant, and a period of {' or '.join(QUOTA_PERIODS)}"
            raise watched_file.FileError(message)
        if budget and period != MONTH:
            message = f"invalid quota: {location}, budget: {untrusted_text.quote_text(budget)} in a row of period {period!r}: expected the period {MONTH!r}: budgets are per month"
            raise watched_file.FileError(message)
        bounds = (
            _amount(gpu_hours, f"{location}, gpu_hours"),
            _amount(gpus, f"{location}, gpus"),
            _amount(budget, f"{location}, {BUDGET_COLUMN}"),
        )
        parsed.append(
            Quota(*watched_file.parse_span(start, end or None, location), tenant, period, *bounds)
        )
    return Quotas(tuple(sorted(parsed, key=lambda quota: (quota.start_ns, quota.tenant))))


def _amount(text: str, location: str) -> Fraction | None:
    if not text:
        return None
    try:
        return untrusted_text.parse_decimal(text, minimum=0)
    except untrusted_text.NumberError as error:
        message = f"invalid quota: {location}: {error}"
        raise watched_file.FileError(message) from error


def watch(path: Path | None) -> watched_file.WatchedFile[Quotas]:
    """The watched quotas file of a path."""
    return watched_file.WatchedFile("quotas", path, parse_quotas, Quotas())
