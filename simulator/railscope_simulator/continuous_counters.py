"""Counters between two steps of a simulation: they advance with time, as those of devices do.

A counter that jumped once per step would show several steps of traffic between two reads that are little more than a step
apart: rates above the line rate.
"""

from __future__ import annotations

import re

from railscope.capture import Json

MIN_ADVANCE = 1000
"""Smaller steps are those of events and states, which change at once."""
_PAUSE_FRAMES = re.compile(r"[rt]x_prio\d_pause|SAI_PORT_STAT_PFC_\d_[TR]X_PKTS")
"""Both ends of a link have the same count of these at any time of a step: the console shows them side by side."""


def between(before: Json, after: Json, elapsed_ns: int, step_ns: int) -> Json:
    """Return the answer at a time after a step: counters have advanced by their share of the next one."""
    if type(before) is not type(after) or before == after:
        return before
    if isinstance(before, dict):
        return _table_between(before, after, elapsed_ns, step_ns)
    if isinstance(before, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [between(first, second, elapsed_ns, step_ns) for first, second in pairs]
    if isinstance(before, str):
        return _text_between(before, after, elapsed_ns, step_ns)
    if type(before) is int and after - before >= MIN_ADVANCE:
        return before + (after - before) * elapsed_ns // step_ns
    return before


def _table_between(
    before: dict[str, Json], after: dict[str, Json], elapsed_ns: int, step_ns: int
) -> dict[str, Json]:
    if before.keys() == {"names", "values"}:  # statistics of a driver
        if before["names"] != after["names"]:
            return before
        own, following = (
            dict(zip(each["names"], each["values"], strict=True)) for each in (before, after)
        )
        found = _table_between(own, following, elapsed_ns, step_ns)
        return {"names": before["names"], "values": list(found.values())}
    return {
        name: value
        if _PAUSE_FRAMES.fullmatch(name)
        else between(value, after.get(name, value), elapsed_ns, step_ns)
        for name, value in before.items()
    }


def _text_between(before: str, after: str, elapsed_ns: int, step_ns: int) -> str:
    """Return the content of a file, or a value of a table, that may be one number."""
    number, following = before.strip(), after.strip()
    if before == after or not (number.isdecimal() and following.isdecimal()):
        return before
    advanced = between(int(number), int(following), elapsed_ns, step_ns)
    return before.replace(number, str(advanced))
