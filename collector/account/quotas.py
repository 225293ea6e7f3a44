"""Quotas of tenants: GPU-hours per day or month, and concurrent GPUs.

CSV with the columns tenant, gpu_hours, period, gpus, from, to. `period` is day or month, of UTC.
`gpu_hours` and `gpus` may be decimal fractions, or empty for no bound; times as in the claims file.
Of two rows of a tenant and period that are in force, the one that began later counts. Quotas are
reported with their use; they are not enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from collector.account.tally import month_of
from collector.files.watched import FileError, Watched, rows, span
from railscope.numeric_text import NumberError, parse_decimal

HEADER = ("tenant", "gpu_hours", "period", "gpus", "from", "to")
PERIODS = ("day", "month")
_HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a tenant in [start, end)."""

    start_ns: int
    end_ns: int
    tenant: str
    period: str
    gpu_hours: Fraction | None
    gpus: Fraction | None

    @property
    def gpu_time_ns(self) -> Fraction | None:
        """GPU time per period."""
        return None if self.gpu_hours is None else self.gpu_hours * _HOUR_NS


@dataclass(frozen=True, slots=True)
class Quotas:
    """All rows of the file, by start."""

    quotas: tuple[Quota, ...] = ()

    def in_force(self, instant_ns: int) -> Iterator[Quota]:
        """Yield the quota of each tenant and period at a timestamp."""
        found: dict[tuple[str, str], Quota] = {}
        for quota in self.quotas:
            if quota.start_ns <= instant_ns < quota.end_ns:
                found[quota.tenant, quota.period] = quota
        yield from found.values()


def days_of(period: str, instant_ns: int) -> tuple[int, int]:
    """Return the days [first, end) of the period that contains a timestamp, counted from the epoch."""
    day = instant_ns // (24 * _HOUR_NS)
    if period == "day":
        return day, day + 1
    first = month_of(day)
    return first, month_of(first + 31)


def parse(text: str) -> Quotas:
    """Parse the text of a file. Raises FileError that names the line."""
    found = []
    for number, (tenant, gpu_hours, period, gpus, start, end) in rows(text, HEADER):
        where = f"line {number}"
        if not tenant or period not in PERIODS:
            message = f"{where}: needs a tenant, and a period of {' or '.join(PERIODS)}"
            raise FileError(message)
        bounds = (
            _amount(gpu_hours, f"{where}, gpu_hours"),
            _amount(gpus, f"{where}, gpus"),
        )
        found.append(Quota(*span(start, end, where), tenant, period, *bounds))
    return Quotas(tuple(sorted(found, key=lambda quota: (quota.start_ns, quota.tenant))))


def _amount(text: str, where: str) -> Fraction | None:
    if not text:
        return None
    try:
        return parse_decimal(text, minimum=0)
    except NumberError as error:
        message = f"{where}: invalid value {error}"
        raise FileError(message) from error


def quotas_file(path: Path | None) -> Watched[Quotas]:
    """Return the watched quotas file at a path."""
    return Watched("quotas", path, parse, Quotas())
