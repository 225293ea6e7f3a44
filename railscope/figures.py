"""Numbers as people write them: 37 %, 1.3 TB, 4 min ago, 12 GPUs. For reading only; JSON and metrics have base units."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "\N{EN DASH}"
"""Stands in a cell for a number that is not known."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_HISSING = ("s", "x", "ch", "sh")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_WORDS = ((0.95, "certain"), (0.6, "likely"))
_SYMBOLS = {
    "watts": "W", "celsius": "°C", "hertz": "Hz", "bytes": "B", "bytes per second": "b/s", "per second": "/s",
}  # fmt: skip
"""Symbols of units, by their name in words. Traffic is read in bits, as the speeds of ports and links are."""
COUNTED = frozenset({"CPUs", "errors", "events", "frames", "nodes", "packets"})
"""Units that are nouns."""
_UNIT_OF_NAME = {
    "_ratio": "ratio", "activity": "ratio", "bytes_per_second": "bytes per second", "transmit": "bytes per second",
    "bytes": "bytes", "watts": "watts", "hertz": "hertz", "clock": "hertz", "celsius": "celsius", "seconds": "seconds",
    "per_second": "per second",
}  # fmt: skip
"""Unit by the end of a metric's name, or of a measure of stragglers."""


def unit_of(name: str) -> str:
    """Return the unit of a metric or measure in words; empty for a plain number, as the number of devices of a roll-up."""
    if "_count_" in name:
        return ""
    return next((unit for end, unit in _UNIT_OF_NAME.items() if name.endswith(end)), "")


def count(number: float, noun: str) -> str:
    """Return a number of things: 1 node, 2 nodes, 1,200 nodes."""
    plural = "es" if noun.endswith(_HISSING) else "s"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"


def listing(texts: Sequence[str]) -> str:
    """Return texts as one: 2 jobs, 1 NIC and 1 GPU."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def digits(value: float) -> str:
    """Return three digits of a number below a thousand; of a small one, two."""
    magnitude = abs(value)
    if magnitude < 1:
        return f"{value:.2g}" if value else "0"
    text = f"{value:.{0 if magnitude >= 100 else 1 if magnitude >= 10 else 2}f}"  # noqa: PLR2004 - three digits
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(ratio: float) -> str:
    """Return a ratio as a percentage of two digits, which is 0 % or 100 % only if the ratio is."""
    value = 100 * ratio
    if 99 <= value < 100:  # noqa: PLR2004 - not all
        return f"{min(math.floor(10 * value) / 10, 99.9):g} %"
    if 0 < abs(value) < 0.01:  # noqa: PLR2004 - the smallest that is distinguished from none
        return "< 0.01 %" if value > 0 else "> -0.01 %"
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value + 0.0:.2g} %"  # noqa: PLR2004 - two digits


def deviation(ratio: float) -> str:
    """Return a deviation from a median as a percentage with its sign; without one if it rounds to zero."""
    text = f"{100 * ratio:+.1f} %"
    return "0 %" if float(text[1:-2]) == 0 else text


def likelihood(probability: float) -> str:
    """Return a probability in a word and as a percentage."""
    word = next((word for least, word in _WORDS if probability >= least), "possible")
    return f"{word} ({percent(probability)})"


def quantity(value: float | None, unit: str = "") -> str:
    """Return a value of a unit in words, such as "bytes per second"; a ratio is a percentage. A dash for none."""
    if value is None or not math.isfinite(value):
        return NONE
    if unit == "ratio":
        return percent(value)
    if unit == "seconds":
        return duration(value)
    if unit == "bytes per second":
        value *= 8
    scale = 1.0, ""
    if unit != "celsius":
        # From 999.5 on, three digits are the next prefix's 1.
        scale = next((each for each in _PREFIXES if abs(value) >= 0.9995 * each[0]), scale)
    number = digits(value / scale[0])
    if unit in COUNTED:
        noun = unit.removesuffix("s") if (number, scale[1]) == ("1", "") else unit
        return " ".join(filter(None, (number, scale[1], noun)))
    symbol = scale[1] + symbol_of(unit)
    return f"{number}{'' if symbol.startswith('/') else ' '}{symbol}".rstrip()


def symbol_of(unit: str) -> str:
    """Return the symbol of a unit; of a ratio, which is a percentage, none."""
    return {**_SYMBOLS, "ratio": "", "seconds": "s"}.get(unit, unit)


def optical_power(watts: float) -> str:
    """Return an optical power in dBm, the unit of transceivers."""
    return f"{10 * math.log10(1000 * watts):.1f} dBm" if watts > 0 else "no light"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units; a dash for none."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    length = abs(seconds)
    rounded = round(length)
    if length < 0.1:  # noqa: PLR2004 - latencies rather than times
        text = f"{digits(1000 * length)} ms" if length else "0 s"
    elif rounded < _MINUTE:
        text = f"{length:.1f} s" if length < 10 else f"{rounded} s"  # noqa: PLR2004 - two digits
    elif rounded < _HOUR:
        text = _two(rounded, _MINUTE, "min", 1, "s")
    elif rounded < _DAY:
        text = _two(rounded, _HOUR, "h", _MINUTE, "min")
    else:
        text = _two(rounded, _DAY, "d", _HOUR, "h")
    return f"-{text}" if seconds < 0 else text


def _two(seconds: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large} {large_unit}" + (f" {rest} {small_unit}" if rest else "")


def age(seconds: float) -> str:
    """Return an age in its largest unit; a small negative one is a difference of clocks."""
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
