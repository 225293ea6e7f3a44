"""Format of a number: a panel's defaults for all fields, overrides for single fields, and units.

Schema: grafana/grafana: kinds/dashboard/dashboard_kind.cue, FieldConfigSource. Numbers become texts
by Grafana's names of units (grafana: packages/grafana-data/src/valueFormats: categories.ts,
valueFormats.ts, symbolFormatters.ts, dateTimeFormatters.ts).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from railscope_dashboards import DashboardsError
from railscope_dashboards.pictures import drawing

_MAX_DECIMALS = 6
"""Maximum number of decimals worth reading."""
_SI_SMALL = ("n", "µ", "m")
_SI = ("", "k", "M", "G", "T", "P", "E")
_SECONDS = (
    (365.25 * 86_400, " years"), (7 * 86_400, " weeks"), (86_400, " days"), (3600, " hours"),
    (60, " mins"), (1, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnitScale:
    """Divisor of a number, and its suffix."""

    divisor: float
    suffix: str


_Chooser = Callable[[float], UnitScale]


def _powers(base: float, names: Sequence[str], unit: str, below: Sequence[str] = ()) -> _Chooser:
    """Return a scaling by powers of a base; `below` names the powers under the base unit."""

    def choose(value: float) -> UnitScale:
        power = math.floor(math.log(abs(value), base) + 1e-12) if value else 0
        power = min(max(power, -len(below)), len(names) - 1)
        name = names[power] if power >= 0 else below[power]
        return UnitScale(base**power, unit.replace("?", name))

    return choose


def _fixed_scale(suffix: str, divisor: float = 1.0) -> _Chooser:
    return lambda _: UnitScale(divisor, suffix)


def _duration(value: float) -> UnitScale:
    for divisor, suffix in _SECONDS:
        if abs(value) >= divisor * (1 - 1e-12):
            return UnitScale(divisor, suffix)
    return UnitScale(1, " s") if value == 0 else UnitScale(*_SECONDS[-1])


def _si(unit: str) -> _Chooser:
    return _powers(1000, _SI, f" ?{unit}", _SI_SMALL)


UNITS: Mapping[str, _Chooser] = {
    "short": _powers(1000, ("", " K", " Mil", " Bil", " Tri", " Quadr", " Quint"), "?"),
    "none": _fixed_scale(""),
    "percentunit": _fixed_scale("%", 0.01),
    "percent": _fixed_scale("%"),
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
    "celsius": _fixed_scale(" °C"),
    "rotrpm": _fixed_scale(" rpm"),
}
"""Scaling of a number, by the units that dashboards use."""


def text(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a number in its unit, as short as Grafana writes it. Raises KeyError for an unknown unit."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    scale = UNITS[unit](value)
    scaled = value / scale.divisor
    places = _places(scaled) if decimals is None else decimals
    return f"{_round(scaled, places)}{scale.suffix}"


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
    if places is None:
        digits = _distinct_digits(scaled)
        return [f"{number:.{digits}g}{scale.suffix}" for number in scaled]
    zero = scale.suffix if scale.suffix == "%" else ""
    return [f"{number:.{places}f}{scale.suffix}" if number else f"0{zero}" for number in scaled]


def _distinct_digits(numbers: Sequence[float]) -> int:
    """Return the significant digits, at least three, with which different numbers have different texts."""
    different = len(set(numbers))
    return next(
        digits
        for digits in range(3, sys.float_info.dig + 3)
        if len({f"{number:.{digits}g}" for number in numbers}) == different
    )


def _places(scaled: float) -> int:
    """Return the number of decimals of a scaled number: three significant figures."""
    if scaled == int(scaled):
        return 0
    return max(2 - math.floor(math.log10(abs(scaled))), 0)


def _round(number: float, places: int) -> str:
    """Round to fixed decimals, unless the number is so small that there would be many."""
    rounded = round(number, places) + 0.0  # no -0
    return f"{rounded:.{places}f}" if places <= _MAX_DECIMALS else f"{number:.2g}"


Json = Mapping[str, Any]


class UnsupportedFeatureError(DashboardsError, RuntimeError):
    """A dashboard contains a feature unknown to this package; no feature is omitted silently."""


@dataclass(frozen=True, slots=True)
class ThresholdStep:
    """A threshold: from this value on, this colour; the first step has no value."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class ValueMapping:
    """Replacement of a value; the text or the colour may be empty."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class FieldFormat:
    """Format and colours of the values of a field."""

    unit: str = "none"
    steps: Sequence[ThresholdStep] = ()
    mapped: Mapping[str, ValueMapping] = field(default_factory=dict)
    cell: str = "auto"
    """Target of the threshold colours in a table: nothing (auto), the text or the background."""
    nothing: str = ""
    """Text in place of a missing value."""
    decimals: int | None = None
    is_linked: bool = False
    minimum: float | None = None
    fixed: str = ""
    """The colour of a curve, if it differs from the colour of its position."""
    drawn: Json = field(default_factory=dict)
    """Options of one kind of panel; Grafana names them custom."""

    def text(self, value: float) -> str:
        """Return a value as its mapped text, or as a number in its unit."""
        mapping = self.mapped.get(f"{value:g}")
        return mapping.text if mapping and mapping.text else text(value, self.unit, self.decimals)

    def colour(self, value: float) -> str:
        """Return the colour of a value: its mapped colour, or that of the last threshold it has reached."""
        mapping = self.mapped.get(f"{value:g}")
        if mapping and mapping.colour:
            return mapping.colour
        reached = [step.colour for step in self.steps if value >= step.value]
        return reached[-1] if reached else drawing.TEXT


def format_of(config: Json, name: str, *, numeric: bool) -> FieldFormat:
    """Return the format of a field, by its name and by `numeric`, true if it contains numbers.

    Raises UnsupportedFeatureError for unknown options.
    """
    settings = dict(config["defaults"])
    for override in config["overrides"]:
        if _matches(override["matcher"], name, numeric=numeric):
            settings |= {each["id"]: each["value"] for each in override["properties"]}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in _SETTINGS:
            message = f"unsupported setting of field {name}: {key}: expected one of {', '.join(_SETTINGS)}"
            raise UnsupportedFeatureError(message)
        part, read = _SETTINGS[key]
        values[part] = read(value)
    return FieldFormat(**values)


def _matches(matcher: Json, name: str, *, numeric: bool) -> bool:
    match matcher["id"]:
        case "byName":
            return bool(matcher["options"] == name)
        case "byType":
            return bool(matcher["options"] == ("number" if numeric else "string"))
        case other:
            message = f"unsupported matcher of fields: {other}: expected byName or byType"
            raise UnsupportedFeatureError(message)


def _steps(thresholds: Json) -> tuple[ThresholdStep, ...]:
    _check_known(thresholds["mode"], ("absolute",), "mode of thresholds")
    steps = (
        ThresholdStep(
            float("-inf") if step["value"] is None else step["value"], _colour(step["color"])
        )
        for step in thresholds["steps"]
    )
    return tuple(sorted(steps, key=lambda step: step.value))


def _mapped_values(mappings: Sequence[Json]) -> dict[str, ValueMapping]:
    texts = {}
    for mapping in mappings:
        _check_known(mapping["type"], ("value",), "mapping of values")
        for value, mapped in mapping["options"].items():
            colour = _colour(mapped["color"]) if "color" in mapped else ""
            texts[value] = ValueMapping(mapped.get("text", ""), colour)
    return texts


def _colour(name: str) -> str:
    try:
        return drawing.find_colour(name)
    except KeyError:
        message = f"unknown colour: {name}: expected one of Grafana's names"
        raise UnsupportedFeatureError(message) from None


def _fixed_colour(colour: Json) -> str:
    _check_known(colour["mode"], ("fixed",), "mode of colours")
    return _colour(colour["fixedColor"])


def _check_known(value: Any, supported: Any, name: str) -> Any:
    if value not in supported:
        message = f"unsupported {name}: {value}: expected one of {', '.join(map(str, supported))}"
        raise UnsupportedFeatureError(message)
    return value


_CELLS = ("auto", "color-text", "color-background")
_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "unit": ("unit", lambda unit: _check_known(unit, UNITS, "unit")),
    "decimals": ("decimals", int),
    "min": ("minimum", float),
    "noValue": ("nothing", str),
    "thresholds": ("steps", _steps),
    "mappings": ("mapped", _mapped_values),
    "color": ("fixed", _fixed_colour),
    "links": ("is_linked", bool),
    "custom": ("drawn", dict),
    "custom.cellOptions": ("cell", lambda cell: _check_known(cell["type"], _CELLS, "kind of cell")),
}
"""Options of a field's format: the part of `FieldFormat` that each sets, and the conversion."""
