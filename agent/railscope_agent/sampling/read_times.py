"""Times at which a read reaches its devices, one after the other."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

from railscope.frame import Entity, Schema
from railscope.timestamps import MICROSECOND_NS
from railscope.wire import MAX_DELAY_US

MIN_DELAY_NS = 5_000_000
"""Shorter delays are not stated: half a percent of the period of network counters."""


class ReadTimes:
    """Time of the first call about each device since the read began, on the boot clock.

    A frame has one time, that before its first call. A device that is slow, or a busy machine, delays the devices behind
    it: without their own times, their counters would have advanced for longer than the frame states.
    """

    def __init__(self) -> None:
        self.by_device: dict[str, int] = {}

    def delays(self, schema: Schema, began_ns: int) -> bytes:
        """Return the delay of each column in the form of frames; empty if no device was read late."""
        late = max(self.by_device.values(), default=began_ns) - began_ns
        if late < MIN_DELAY_NS:
            return b""
        delays_us = {
            device: min(max(read_ns - began_ns, 0) // MICROSECOND_NS, MAX_DELAY_US)
            for device, read_ns in self.by_device.items()
        }
        # A column that names no device, such as one of an answer about all, was read with the first call.
        first = min(delays_us.values())
        indices = {
            entity.key[0]: entity.facts["index"]
            for entity in schema.entities
            if entity.kind.name == "gpu" and "index" in entity.facts
        }
        of_entity: dict[tuple[str, ...], int] = {}
        for entity in schema.entities:
            if entity.whole_key not in of_entity:
                known = (delays_us[each] for each in _devices(entity, indices) if each in delays_us)
                of_entity[entity.whole_key] = next(known, first)
        stored = array("I", [of_entity[entity.whole_key] for _, entity in schema.columns])
        if sys.byteorder == "big":
            stored.byteswap()
        return stored.tobytes()


def _devices(entity: Entity, indices: dict[str, str]) -> Iterator[str]:
    """Yield the names of an entity's device in calls and paths."""
    if entity.whole_key:
        name = entity.whole_key[0]
        yield from (f"net/{name}", f"infiniband/{name}", f"pci/{name}")
        yield f"nvml/{indices.get(name, name)}"
