"""Evidence in words: the quantity, its value as people write it, and what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from railscope import figures
from railscope.api import EvidenceDocument
from railscope.catalog import METRICS, xids
from railscope.timestamps import parse_timestamp, utc_text
from railscope_collector.diagnosis import findings, rank_events
from railscope_collector.diagnosis.quantities import QUANTITIES
from railscope_collector.diagnosis.signals import SIGNALS

_REPORTED = {
    "losses": ("per second", "Packets lost on the way to the NIC"),
    "receipt_age_seconds": ("seconds", "Time since the last frame of the node"),
    "clock_offset": ("seconds", "Difference of the clock"),
    "nodes_waiting": ("nodes", "Nodes that wait"),
    rank_events.SLOW_PATH: ("bytes per second", "Bandwidth between the ranks"),
    rank_events.STRAGGLER: ("%", "Time that the rank arrives late"),
}
"""Unit and meaning of evidence that is no signal of a device."""
MEANINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    _REPORTED | {each.name: (each.unit, each.text) for of_kind in SIGNALS.values() for each in of_kind.values()}
)  # fmt: skip
_REMARK = re.compile(r"\s*\[[^\]]*\]|[;:].*|\.$")
"""Symbol of a formula in the meaning of a signal, a remark after it, and the full stop at its end."""
_FLAG, _FLAG_WORDS, _STATE = "1 or 0", "1 if ", "state"
_FLAGS = {"link_up": ("link", "down", "up"), "port_up": ("switch port", "down", "up")}
"""Flags that are states: subject, and words for 0 and 1."""
_OF_TIME, _OF_WHOLE = "time in which ", ", relative to "
"""Meanings of ratios: a statement on the device and its share of time, or a quantity and what it is a part of."""
_NORMAL = re.compile(r"(peers|other \w+( of the job)?|baseline|its past)( and (baseline|past))?")
"""Comparisons with what is normal: with other devices, or with the device's own past."""
_RELATIVE = frozenset({findings.CHANGE, findings.OWN_PAST})
"""Comparisons of which the value is a quotient."""


def evidence_text(evidence: EvidenceDocument) -> str:
    """Return one piece of evidence as a line: device, quantity, value, and what is usual; or the reason for no value."""
    return f"{evidence.device}: {_statement(evidence)}"


def is_measure(signal: str) -> bool:
    """True if values of a signal are worse or better; those of counts differ with their windows, a flag or a state has no degree."""
    return signal in MEANINGS and MEANINGS[signal][0] not in figures.COUNTED | {_FLAG, _STATE}


def worst_text(evidence: EvidenceDocument) -> str:
    """Return the worst value in words; empty if it reads as the present one does."""
    worst = evidence.worst_value
    if worst is None or evidence.value is None or evidence.signal not in MEANINGS:
        return ""
    unit = MEANINGS[evidence.signal][0]
    if evidence.comparison in _RELATIVE:
        texts = [figures.percent(each) for each in (evidence.value, worst)]
    else:
        texts = [_value_text(evidence.signal, unit, each) for each in (evidence.value, worst)]
    return "" if texts[0] == texts[1] else texts[1]


def dated_text(evidence: EvidenceDocument) -> str:
    """Return evidence as a line that ends with its worst value, and the time at which that was read."""
    worst, text = worst_text(evidence), evidence_text(evidence)
    if not worst or evidence.worst_at is None:
        return text
    return f"{text}; worst: {worst} at {utc_text(parse_timestamp(evidence.worst_at))}"


def quantity_text(signal: str) -> str:
    """Return the quantity of a signal as a title; its name where there is no meaning."""
    words = _words(MEANINGS.get(signal, ("", signal))[1])
    return words[:1].upper() + words[1:]


def _words(meaning: str) -> str:
    return _REMARK.sub("", meaning).removeprefix(_FLAG_WORDS)


def _statement(evidence: EvidenceDocument) -> str:
    signal, comparison, value = evidence.signal, evidence.comparison, evidence.value
    if comparison == findings.EVENT:
        return _event_text(signal)
    if signal in rank_events.RANK_TEXTS:
        return rank_events.RANK_TEXTS[signal]
    if signal not in MEANINGS and not evidence.window_seconds:
        return comparison  # of a setting or a cable: names what the peers have
    unit, meaning = MEANINGS.get(signal, ("", signal))
    words = lowered(_words(meaning)).removeprefix("share of ")
    words = _FLAGS[signal][0] if signal in _FLAGS else words
    if value is None:
        return f"{words}: no value ({comparison})"
    if comparison in _RELATIVE:
        return f"{words.partition(_OF_WHOLE)[0]}: {figures.percent(value)} of what is normal"
    shown = _value_text(signal, unit, value)
    if words.startswith(_OF_TIME):
        shown = f"{words.removeprefix(_OF_TIME).removeprefix('the NIC ')} {shown} of the time"
    elif unit == "ratio" and _OF_WHOLE in words:
        shown = f"{words.replace(_OF_WHOLE, f': {shown} of ')}"
    else:
        shown = f"{words}{' ' if signal in _FLAGS else ': '}{shown}"
    return shown + _compared(evidence, unit)


def _event_text(signal: str) -> str:
    kind, _, number = signal.partition(" ")
    if kind != "xid" or not number.isdecimal():
        return signal
    return f"Xid {number}, {lowered(xids.xid(int(number)).meaning.removesuffix('.'))}"


def _value_text(signal: str, unit: str, value: float) -> str:
    if unit == _FLAG:
        return _FLAGS.get(signal, ("", "no", "yes"))[1 + bool(value)]
    if unit == _STATE and signal in QUANTITIES:
        states = METRICS[QUANTITIES[signal].metric].states
        return states.get(int(value), "unknown").replace("_", " ")
    return figures.quantity(value, "" if unit in figures.COUNTED else unit)  # the words contain it


def _compared(evidence: EvidenceDocument, unit: str) -> str:
    """Return what a value is compared with, in brackets; nothing for a limit of zero."""
    comparison, limit = evidence.comparison, evidence.threshold
    if limit is None or (not limit and comparison == "limit"):
        return ""
    if comparison == findings.TIMES_PAST:
        return f" ({figures.digits(limit)} times its past)"
    comparison = "normal" if _NORMAL.fullmatch(comparison) else comparison
    return f" ({comparison}: {_value_text(evidence.signal, unit, limit)})"


def lowered(text: str) -> str:
    """Return a text that continues a line; names and abbreviations retain their case."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
