"""Numbers as texts, by Grafana's names of units.

grafana: packages/grafana-data/src/valueFormats: categories.ts, valueFormats.ts,
symbolFormatters.ts, dateTimeFormatters.ts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_MAX_DECIMALS = 6
"""Maximum number of decimals worth reading."""
_SI_SMALL = ("n", "µ", "m")
_SI = ("", "k", "M", "G", "T", "P", "E")
_SECONDS = (
    (365.25 * 86_400, " years"), (7 * 86_400, " weeks"), (86_400, " days"), (3600, " hours"),
    (60, " mins"), (1, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Divisor of a number, and its suffix."""

    divisor: float
    suffix: str


_Chooser = Callable[[float], Scale]


def _powers(base: float, names: Sequence[str], unit: str, below: Sequence[str] = ()) -> _Chooser:
    """Return a scaling by powers of a base; `below` names the powers under the base unit."""

    def choose(value: float) -> Scale:
        power = math.floor(math.log(abs(value), base) + 1e-12) if value else 0
        power = min(max(power, -len(below)), len(names) - 1)
        name = names[power] if power >= 0 else below[power]
        return Scale(base**power, unit.replace("?", name))

    return choose


def _fixed(suffix: str, divisor: float = 1.0) -> _Chooser:
    return lambda _: Scale(divisor, suffix)


def _duration(value: float) -> Scale:
    for divisor, suffix in _SECONDS:
        if abs(value) >= divisor * (1 - 1e-12):
            return Scale(divisor, suffix)
    return Scale(1, " s") if value == 0 else Scale(*_SECONDS[-1])


def _si(unit: str) -> _Chooser:
    return _powers(1000, _SI, f" ?{unit}", _SI_SMALL)


UNITS: Mapping[str, _Chooser] = {
    "short": _powers(1000, ("", " K", " Mil", " Bil", " Tri", " Quadr", " Quint"), "?"),
    "none": _fixed(""),
    "percentunit": _fixed("%", 0.01),
    "percent": _fixed("%"),
    "bytes": _powers(1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), " ?B"),
    "Bps": _si("B/s"),
    "pps": _si("p/s"),
    "cps": _powers(1000, ("", "K", "M", "B", "T"), "? c/s"),
    "s": _duration,
    "watt": _si("W"),
    "joule": _si("J"),
    "volt": _si("V"),
    "amp": _si("A"),
    "hertz": _si("Hz"),
    "celsius": _fixed(" °C"),
    "rotrpm": _fixed(" rpm"),
}
"""Scaling of a number, by the units that dashboards use."""


def text(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a number in its unit, as short as Grafana writes it. Raises KeyError for an unknown unit."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    scale = UNITS[unit](value)
    scaled = value / scale.divisor
    places = _places(scaled) if decimals is None else decimals
    return f"{_rounded(scaled, places)}{scale.suffix}"


def texts_of_ticks(ticks: Sequence[float], unit: str) -> list[str]:
    """Return the ticks of an axis, all in the same scale and with enough decimals to differ."""
    scale = UNITS[unit](max(map(abs, ticks), default=0.0))
    scaled = [tick / scale.divisor for tick in ticks]
    nearest = min((after - before for before, after in pairwise(scaled)), default=math.inf)
    exact = (
        places
        for places in range(_MAX_DECIMALS + 1)
        if all(abs(round(number, places) - number) <= nearest / 1000 for number in scaled)
    )
    places = next(exact, None)
    zero = scale.suffix if scale.suffix == "%" else ""
    return [
        f"{number:.3g}{scale.suffix}" if places is None else
        f"{number:.{places}f}{scale.suffix}" if number else f"0{zero}"
        for number in scaled
    ]  # fmt: skip


def _places(scaled: float) -> int:
    """Return the number of decimals of a scaled number: three significant figures."""
    if scaled == int(scaled):
        return 0
    return max(2 - math.floor(math.log10(abs(scaled))), 0)


def _rounded(number: float, places: int) -> str:
    """Round to fixed decimals, unless the number is so small that there would be many."""
    rounded = round(number, places) + 0.0  # no -0
    return f"{rounded:.{places}f}" if places <= _MAX_DECIMALS else f"{number:.2g}"
