"""GPUs and RDMA ports in the newest frames of nodes, with the state of each.

A device is present if a frame has a value of it. It is gone if its readings are gone (a GPU that
NVML reports as lost), except for unsupported ones. Without any value for another reason it may be
there or not. If a source has found no device on a node there are no frames of it; the state that
the agent reports for each source shows that.
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
"""The stream with the devices of each kind; the name of its source is the same."""
AGENT_STREAM = "agent"
UNSUPPORTED = next(code for code, word in SOURCE_STATES.items() if word == "unsupported")
_NOTHING: npt.NDArray[np.intp] = np.array((), np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """The devices of one kind in a schema; `order` lists their columns, `starts` the start of each."""

    names: tuple[str, ...] = ()
    order: npt.NDArray[np.intp] = field(default_factory=lambda: _NOTHING)
    starts: npt.NDArray[np.intp] = field(default_factory=lambda: _NOTHING)

    def look(self, codes: npt.NDArray[np.uint8]) -> Shown:
        """Return the state of each device from a row of reasons."""
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
    """The parts of a schema that show devices."""

    devices: Devices = field(default_factory=Devices)
    states: Mapping[str, int] = field(default_factory=dict)
    """The columns with the states of the sources in `STREAMS`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The devices of one kind in one node, by name."""

    present: Sequence[str] = ()
    gone: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Listed without any value: they may be there or not."""


NOTHING = Showing()


def showing(wire: WireSchema) -> Showing:
    """Return the parts of a schema that show devices, determined once per schema."""
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
