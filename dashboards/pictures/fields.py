"""Format of a number: a panel's defaults for all fields, and its overrides for single fields.

Schema: grafana/grafana: kinds/dashboard/dashboard_kind.cue, FieldConfigSource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.pictures import colours, units

Json = Mapping[str, Any]


class CannotDraw(RuntimeError):  # noqa: N818 - states the failure, as a reader would
    """A dashboard contains a feature unknown to this package; no feature is omitted silently."""


@dataclass(frozen=True, slots=True)
class Step:
    """A threshold: from this value on, this colour; the first step has no value."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Word:
    """Replacement of a value; the text or the colour may be empty."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Look:
    """Format and colours of the values of a field."""

    unit: str = "none"
    steps: Sequence[Step] = ()
    words: Mapping[str, Word] = field(default_factory=dict)
    cell: str = "auto"
    """Target of the threshold colours in a table: nothing (auto), the text or the background."""
    nothing: str = ""
    """Text in place of a missing value."""
    decimals: int | None = None
    linked: bool = False
    minimum: float | None = None
    fixed: str = ""
    """The colour of a curve, if it differs from the colour of its position."""
    drawn: Json = field(default_factory=dict)
    """Options of one kind of panel; Grafana names them custom."""

    def text(self, value: float) -> str:
        """Return a value as its mapped text, or as a number in its unit."""
        word = self.words.get(f"{value:g}")
        return word.text if word and word.text else units.text(value, self.unit, self.decimals)

    def colour(self, value: float) -> str:
        """Return the colour of a value: its mapped colour, or that of the last threshold it has reached."""
        word = self.words.get(f"{value:g}")
        if word and word.colour:
            return word.colour
        reached = [step.colour for step in self.steps if value >= step.value]
        return reached[-1] if reached else colours.TEXT


def look_of(config: Json, name: str, *, numeric: bool) -> Look:
    """Return the format of a field, by its name and by `numeric`, true if it contains numbers.

    Raises CannotDraw for unknown options.
    """
    settings = dict(config["defaults"])
    for override in config["overrides"]:
        if _matches(override["matcher"], name, numeric=numeric):
            settings |= {each["id"]: each["value"] for each in override["properties"]}
    look: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in _SETTINGS:
            message = f"field {name}: no drawing of {key}"
            raise CannotDraw(message)
        part, read = _SETTINGS[key]
        look[part] = read(value)
    return Look(**look)


def _matches(matcher: Json, name: str, *, numeric: bool) -> bool:
    match matcher["id"]:
        case "byName":
            return bool(matcher["options"] == name)
        case "byType":
            return bool(matcher["options"] == ("number" if numeric else "string"))
        case other:
            message = f"no matching of fields {other}"
            raise CannotDraw(message)


def _steps(thresholds: Json) -> tuple[Step, ...]:
    _known(thresholds["mode"], ("absolute",), "mode of thresholds")
    steps = (
        Step(float("-inf") if step["value"] is None else step["value"], _colour(step["color"]))
        for step in thresholds["steps"]
    )
    return tuple(sorted(steps, key=lambda step: step.value))


def _words(mappings: Sequence[Json]) -> dict[str, Word]:
    words = {}
    for mapping in mappings:
        _known(mapping["type"], ("value",), "mapping of values")
        for value, found in mapping["options"].items():
            colour = _colour(found["color"]) if "color" in found else ""
            words[value] = Word(found.get("text", ""), colour)
    return words


def _colour(name: str) -> str:
    try:
        return colours.named(name)
    except KeyError:
        message = f"no colour {name}"
        raise CannotDraw(message) from None


def _fixed(colour: Json) -> str:
    _known(colour["mode"], ("fixed",), "mode of colours")
    return _colour(colour["fixedColor"])


def _known(value: Any, known: Any, what: str) -> Any:
    if value not in known:
        message = f"no {what} {value}"
        raise CannotDraw(message)
    return value


_CELLS = ("auto", "color-text", "color-background")
_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "unit": ("unit", lambda unit: _known(unit, units.UNITS, "unit")),
    "decimals": ("decimals", int),
    "min": ("minimum", float),
    "noValue": ("nothing", str),
    "thresholds": ("steps", _steps),
    "mappings": ("words", _words),
    "color": ("fixed", _fixed),
    "links": ("linked", bool),
    "custom": ("drawn", dict),
    "custom.cellOptions": ("cell", lambda cell: _known(cell["type"], _CELLS, "kind of cell")),
}
"""Options of a field's format: the part of `Look` that each sets, and the conversion."""
