"""Series of textfiles in frames: identity, exact value, and exposition under their own names.

A value is the decimal number that the file states: mantissa · 10^exponent, as two columns. A number whose
digits exceed 64 bits is that of the nearest float64, which is what Prometheus stores. Values that are not
finite, and negative zero, have the exponent `SPECIAL`; `UNSIGNED` is added to the exponent of a mantissa that
exceeds 63 bits, and is stored as a negative integer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from railscope import untrusted_text
from railscope.catalog import entities, textfile as catalog
from railscope.frame import Frame, Schema
from railscope.reading import PRESENT, SIGNED_LIMIT, UNSIGNED_RANGE, Absent, Reading

SPECIAL, UNSIGNED = 100_000, 200_000
_SPECIAL_VALUES = {0: "NaN", 1: "+Inf", -1: "-Inf", 2: "-0"}
_NOT_FINITE = {"nan": 0, "inf": 1, "infinity": 1}
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?")
# 2^64 has 20 digits.
_MAX_EXPONENT, _MAX_DIGITS = 9999, 20
_MAX_ZEROS = 40
"""Zeros that are written out; beyond them, a number is written with an exponent."""
MAX_HELP_CHARACTERS = 1000
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
}
"""Names of the samples of a family, by its type, as suffixes; of other types the name alone."""
UNTYPED = "untyped"


def encode_value(text: str) -> tuple[int, int]:
    """Return mantissa and exponent of a number in the text format. Raises ValueError.

    The forms are those of Go's ParseFloat without hexadecimal ones; a finite number beyond float64 is invalid.
    """
    special = _NOT_FINITE.get(text.lstrip("+-").lower())
    if special is not None and len(text) - len(text.lstrip("+-")) <= 1:
        return (-special if text[0] == "-" else special), SPECIAL
    match = _NUMBER.fullmatch(text)
    if not match or not (match[2] or match[3]) or math.isinf(float(text)):
        message = (
            f"invalid value {untrusted_text.quote_text(text)}: expected a decimal number of float64"
        )
        raise ValueError(message)
    sign, whole, fraction, power = match.groups(default="")
    digits = (whole + fraction).lstrip("0") or "0"
    exponent = int(power or 0) - len(fraction)
    if digits == "0":
        return (
            (2, SPECIAL) if sign == "-" else (0, max(exponent, -_MAX_ZEROS) if exponent < 0 else 0)
        )
    if len(digits) > _MAX_DIGITS or abs(exponent) > _MAX_EXPONENT:
        return encode_value(repr(float(text)))
    mantissa = int(sign + digits)
    if -SIGNED_LIMIT <= mantissa < SIGNED_LIMIT:
        return mantissa, exponent
    if 0 < mantissa < UNSIGNED_RANGE:
        return mantissa - UNSIGNED_RANGE, exponent + UNSIGNED
    return encode_value(repr(float(text)))


def decode_value(mantissa: int, exponent: int) -> str:
    """Return a value in the text format. The columns may come from a hostile node."""
    if exponent == SPECIAL:
        return _SPECIAL_VALUES.get(mantissa, "NaN")
    if exponent >= UNSIGNED - _MAX_EXPONENT:
        mantissa, exponent = mantissa + UNSIGNED_RANGE, exponent - UNSIGNED
    if not -_MAX_ZEROS <= exponent <= _MAX_ZEROS:
        return f"{mantissa}e{exponent}" if mantissa else "0"
    if exponent >= 0:
        return f"{mantissa}{'0' * exponent}" if mantissa else "0"
    digits = f"{abs(mantissa):0{1 - exponent}d}"
    return f"{'-' * (mantissa < 0)}{digits[:exponent]}.{digits[exponent:]}"


def sample_names(family: str, type_: str) -> list[str]:
    """Return the names of the samples of a family."""
    return [family + suffix for suffix in SUFFIXES.get(type_, ("",))]


def help_text(text: str) -> str:
    """Return a help text of bounded length, printable, with backslashes and line breaks escaped."""
    lines = text[:MAX_HELP_CHARACTERS].replace("\\", "\\\\").split("\n")
    return "\\n".join(map(untrusted_text.printable, lines))


def value_columns(columns: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
    """Yield the series of columns with the positions of mantissa and exponent.

    `columns` are the metric and the first word of the key of the entity of each column.
    """
    mantissas = {}
    for position, (metric, series) in enumerate(columns):
        if metric == catalog.VALUE_MANTISSA.name:
            mantissas[series] = position
        elif metric == catalog.VALUE_EXPONENT.name and series in mantissas:
            yield series, mantissas[series], position


def json_entries(
    columns: Iterable[tuple[str, str]], reading: Callable[[int], Reading]
) -> list[dict[str, str]]:
    """Return series with their values, or the reasons for their absence, as members of a JSON document.

    `reading` returns the reading of a column. Values are texts: a number of JSON would not be exact.
    """
    entries = []
    for series, *places in value_columns(columns):
        parts = [reading(place) for place in places]
        absent = next((part.label for part in parts if isinstance(part, Absent)), "")
        numbers = [part for part in parts if isinstance(part, int)]
        value = {"absent": absent} if absent else {"value": decode_value(*numbers)}
        entries.append({"series": series, **value})
    return entries


class _Family:
    """Header and series of one metric."""

    def __init__(self, name: str, type_: str, help_: str) -> None:
        self.name, self.type, self.help = name, type_, help_
        self.series: list[tuple[str, int, int]] = []
        self.openmetrics_name, self.openmetrics_type = name, type_
        if type_ == "counter" and name.endswith("_total"):
            self.openmetrics_name = name.removesuffix("_total")
        elif type_ in {"counter", UNTYPED}:  # every counter of OpenMetrics ends in _total
            self.openmetrics_type = "unknown"

    def header(self, *, is_openmetrics: bool) -> str:
        name, type_, help_ = self.name, self.type, self.help
        if is_openmetrics:
            name, type_ = self.openmetrics_name, self.openmetrics_type
            help_ = help_.replace('"', '\\"')
        return f"# HELP {name} {help_}\n" * bool(help_) + f"# TYPE {name} {type_}\n"


class TextfileSample(NamedTuple):
    """A series in the text format, type and help of its metric, and its value."""

    type: str
    help: str
    series: str
    value: str


class TextfileTemplate:
    """Exposition of the series of textfiles in frames of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._families: list[_Family] = []
        self._last: dict[bool, tuple[Frame, str]] = {}
        by_sample: dict[str, _Family] = {}
        for entity in schema.entities:
            if entity.kind is entities.TEXTFILE_FAMILY:
                family = _Family(*entity.key)
                self._families.append(family)
                by_sample |= dict.fromkeys(sample_names(family.name, family.type), family)
        names = {family.name for family in self._families}
        for family in self._families:
            # Two metrics would have one name.
            if family.openmetrics_name != family.name and family.openmetrics_name in names:
                family.openmetrics_name, family.openmetrics_type = family.name, "unknown"
        columns = ((metric.name, "".join(entity.key[:1])) for metric, entity in schema.columns)
        for series, mantissa, exponent in value_columns(columns):
            if owner := by_sample.get(series.partition("{")[0]):
                owner.series.append((series, mantissa, exponent))

    def samples(self, frame: Frame) -> Iterator[TextfileSample]:
        """Yield the present series with their values."""
        for family in self._families:
            for series, mantissa, exponent in family.series:
                if not frame.reasons or frame.reasons[mantissa] == PRESENT:
                    value = decode_value(frame.values[mantissa], frame.values[exponent])
                    yield TextfileSample(family.type, family.help, series, value)

    def render(self, frame: Frame, *, is_openmetrics: bool) -> str:
        """Return the present series, below the headers of their metrics."""
        last = self._last.get(is_openmetrics)  # files are read less often than scraped
        if last is None or last[0] is not frame:
            last = self._last[is_openmetrics] = frame, self._render(frame, is_openmetrics)
        return last[1]

    def _render(self, frame: Frame, is_openmetrics: bool) -> str:  # noqa: FBT001 - of render
        parts: list[str] = []
        for family in self._families:
            lines = [
                f"{series} {decode_value(frame.values[mantissa], frame.values[exponent])}\n"
                for series, mantissa, exponent in family.series
                if not frame.reasons or frame.reasons[mantissa] == PRESENT
            ]
            if lines:
                parts += family.header(is_openmetrics=is_openmetrics), *lines
        return "".join(parts)
