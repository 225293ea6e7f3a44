"""Printed results: ratios with their aims, then the figures behind them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a ratio."""

    sign: str
    bound: float
    unit: str = ""

    def met(self, value: float) -> bool:
        """True if a value meets the target."""
        return _COMPARE[self.sign](value, self.bound)

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{self.unit}"


@dataclass
class Report:
    """Rows of a report under construction."""

    title: str
    _ratios: list[tuple[str, str, str, str]] = field(default_factory=list)
    _figures: list[tuple[str, str]] = field(default_factory=list)

    def ratio(self, what: str, value: float, aim: Aim | None = None, unit: str = "") -> None:
        """Add a ratio; its unit is that of the aim if it has one."""
        unit = aim.unit if aim else unit
        verdict = "" if aim is None else ("met" if aim.met(value) else "MISSED")
        self._ratios.append((what, f"{value:.3g}{unit}", str(aim) if aim else "-", verdict))

    def figure(self, what: str, text: str) -> None:
        """Add a figure."""
        self._figures.append((what, text))

    def __str__(self) -> str:
        head = ("ratio", "measured", "aim", "")
        return "\n".join(
            [
                self.title,
                "=" * len(self.title),
                *_aligned([head, *self._ratios]),
                "",
                "Figures behind them, of this run on this machine:",
                *_aligned(self._figures),
            ]
        )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def microseconds(seconds: float) -> str:
    """Format a short time."""
    return f"{seconds * 1e6:,.2f} us"


def mebibytes(size: float) -> str:
    """Format an amount of memory."""
    return f"{size / (1 << 20):.1f} MiB"
