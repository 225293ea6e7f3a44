"""Counters between two steps of a simulation: they advance with time, as those of devices do.

A counter that jumped once per step would show several steps of traffic between two reads that are little more than a step
apart: rates above the line rate.
"""

from __future__ import annotations

from itertools import starmap

from railscope.capture import Json

MIN_ADVANCE = 1000
"""Smaller steps are those of events and states, which change at once."""


def between(before: Json, after: Json, elapsed_ns: int, step_ns: int) -> Json:
    """Return the answer at a time after a step: counters have advanced by their share of the next one."""
    if before is after or type(before) is not type(after):
        return before
    if isinstance(before, dict):
        return {
            key: between(value, after.get(key, value), elapsed_ns, step_ns)
            for key, value in before.items()
        }
    if isinstance(before, list):
        if len(before) != len(after) or before == after:
            return before
        pairs = zip(before, after, strict=True)
        return list(starmap(lambda a, b: between(a, b, elapsed_ns, step_ns), pairs))
    if isinstance(before, str):
        return _text_between(before, after, elapsed_ns, step_ns)
    is_counter = type(before) is int and after - before >= MIN_ADVANCE
    return before + (after - before) * elapsed_ns // step_ns if is_counter else before


def _text_between(before: str, after: str, elapsed_ns: int, step_ns: int) -> str:
    """Return the content of a file, or a value of a table, that may be one number."""
    number, following = before.strip(), after.strip()
    if before == after or not (number.isdecimal() and following.isdecimal()):
        return before
    advanced = between(int(number), int(following), elapsed_ns, step_ns)
    return before.replace(number, str(advanced))
