"""What nodes show: the GPUs and RDMA ports of their newest frames, each with what is known of it.

A device that a frame has a value of is present. One whose readings are gone (a GPU that NVML calls
lost), but for those it never had, is not. One without any value for another reason may be there or not: no one knows. Where a
source has found nothing at all on a machine there are no frames of it; its state, which the agent
tells of each source, says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from railscope.catalog.agent import SOURCE_STATE, SOURCE_STATES
from railscope.reading import PRESENT, Absent
from railscope.wire import WireSchema

GPU, RDMA_PORT = "gpu", "rdma_port"
STREAMS: Mapping[str, str] = {GPU: "gpu", RDMA_PORT: "rdma"}
"""The stream that shows each kind of device; the name of its source is the same."""
AGENT_STREAM = "agent"
UNSUPPORTED = next(code for code, word in SOURCE_STATES.items() if word == "unsupported")
_NOTHING: npt.NDArray[np.intp] = np.array((), np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The devices of one kind in a schema; `order` lists their columns, `starts` where each begins."""

    names: tuple[str, ...] = ()
    order: npt.NDArray[np.intp] = field(default_factory=lambda: _NOTHING)
    starts: npt.NDArray[np.intp] = field(default_factory=lambda: _NOTHING)

    def look(self, codes: npt.NDArray[np.uint8]) -> Shown:
        """What a row of reasons says of each device."""
        if not self.names:
            return Shown()
        mine = codes[self.order]
        present = np.logical_or.reduceat(mine == PRESENT, self.starts)
        if present.all():
            return Shown(self.names)
        is_gone = mine == Absent.GONE.value
        not_here = np.logical_and.reduceat(
            is_gone | (mine == Absent.UNSUPPORTED.value), self.starts
        )
        gone = np.logical_or.reduceat(is_gone, self.starts) & not_here
        told = list(zip(self.names, present.tolist(), gone.tolist(), strict=True))
        return Shown(
            tuple(name for name, is_present, _ in told if is_present),
            tuple(name for name, _, is_gone in told if is_gone),
            tuple(name for name, is_present, is_gone in told if not (is_present or is_gone)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Showing:
    """What of a schema says which devices are there."""

    devices: Devices = field(default_factory=Devices)
    states: Mapping[str, int] = field(default_factory=dict)
    """The columns that tell how the sources of `STREAMS` fare."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The devices of one kind in one node, by name."""

    present: Sequence[str] = ()
    gone: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Listed, and without any value: whether they are there is not known."""


NOTHING = Showing()


def showing(wire: WireSchema) -> Showing:
    """What a schema says of devices, found once a schema."""
    if wire.stream == AGENT_STREAM:
        return Showing(states=_states(wire))
    kind = next((kind for kind, stream in STREAMS.items() if stream == wire.stream), None)
    return NOTHING if kind is None else Showing(_devices(wire, kind))


def _devices(wire: WireSchema, kind: str) -> Devices:
    columns: dict[int, list[int]] = {}
    column = 0
    for group in wire.groups:
        for member in group.entities:
            if wire.entities[member].kind == kind:
                columns.setdefault(member, []).append(column)
            column += 1
    found = [("/".join(wire.entities[member].key), some) for member, some in columns.items()]
    sizes = [0, *(len(some) for _, some in found)]
    return Devices(
        tuple(name for name, _ in found),
        np.array([one for _, some in found for one in some], np.intp),
        np.cumsum(sizes[:-1], dtype=np.intp),
    )


def _states(wire: WireSchema) -> dict[str, int]:
    found: dict[str, int] = {}
    column = 0
    for group in wire.groups:
        for member in group.entities:
            source = wire.entities[member].key[:1]
            if group.metric == SOURCE_STATE.name and source and source[0] in STREAMS.values():
                found[source[0]] = column
            column += 1
    return found
