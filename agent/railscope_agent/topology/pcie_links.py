"""PCIe links between a device and the processor: capability and present state.

A link has two ends, and is as fast and as wide as the lesser one allows; a path is as good as its worst
link. The upstream and downstream ports of a switch have no link between them. Payload coding: PCI Express
Base Specification, 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, from 64 GT/s on flits of 256 bytes of
which 242 are for packets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from railscope.catalog.pcie import PATH_STEPS, PCIE_PATH_STATE
from railscope.reading import Absent, Reading
from railscope_agent.host import FileGroup
from railscope_agent.topology.pci import BRIDGE, DEVICES

FILES = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
FULL, POWER_SAVING, DEGRADED, LOST = PCIE_PATH_STATE.states
_SPEED = re.compile(rb"\s*(\d+(?:\.\d+)?)\s*GT/s")
_MEGATRANSFERS = 1000
_UNKNOWN_WIDTHS = {0, 63, 255}
_ALL_ONES = {b"63", b"255"}
"""Width that the kernel reads from a device that no longer responds."""
_TRANSFERS, _BITS = 10**6, 8
_CODINGS = ((8_000, 8, 10), (64_000, 128, 130), (1 << 63, 242, 256))
"""Upper bound in MT/s, payload bits and total bits of each coding."""


@dataclass(frozen=True, slots=True)
class PcieLinkState:
    """One end of a link: MT/s per lane and lanes, now and at most, and True if it reads as all ones."""

    speed: Reading
    speed_limit: Reading
    width: Reading
    width_limit: Reading
    lost: bool = False


_NO = Absent.UNSUPPORTED
UNKNOWN_LINK_STATE = PcieLinkState(_NO, _NO, _NO, _NO)


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A link by the addresses of its ends; the upper one is empty if it is not visible."""

    upper: str
    lower: str


IsSavingPower = Callable[[str], bool | Absent]
"""Returns True if a device may be in a power saving state, which slows its link."""


def link_bandwidth(megatransfers: int, lanes: int) -> int:
    """Return the payload rate of a link per direction, in thirteenths of a byte per second.

    Exact up to 32 GT/s.
    """
    payload, of = next((p, b) for below, p, b in _CODINGS if megatransfers < below)
    return megatransfers * _TRANSFERS * lanes * PATH_STEPS * payload // (of * _BITS)


def parse_link(file: str, content: bytes) -> Reading:
    """Parse one of `FILES`: MT/s, or lanes."""
    content = content.strip()
    if file.endswith("_speed"):
        match = _SPEED.match(content)
        if match:
            return round(float(match[1]) * _MEGATRANSFERS)
        return Absent.UNSUPPORTED if content.startswith(b"Unknown") else Absent.ERROR
    if not content.isdigit():
        return Absent.ERROR
    return Absent.UNSUPPORTED if int(content) in _UNKNOWN_WIDTHS else int(content)


def link_files(addresses: Iterable[str]) -> list[str]:
    """Return the paths of the files of links, for `Host.open_file_group`."""
    return [f"{DEVICES}/{address}/{file}" for address in addresses for file in FILES]


def read_links(files: FileGroup, addresses: Iterable[str]) -> dict[str, PcieLinkState]:
    """Return the state of every device's link by address; `files` are the `link_files` of all."""
    contents = iter(files.texts())
    return {address: _read_link([*islice(contents, len(FILES))]) for address in addresses}


def _read_link(contents: Sequence[bytes | Absent]) -> PcieLinkState:
    readings: list[Reading] = []
    lost = False
    for file, content in zip(FILES, contents, strict=True):
        if isinstance(content, Absent):
            readings.append(content)
            continue
        readings.append(parse_link(file, content))
        lost |= file == "current_link_width" and content.strip() in _ALL_ONES
    # A width of all ones alone is not enough: the speed of a device that responds is known.
    speed, speed_limit, width, width_limit = readings
    return PcieLinkState(speed, speed_limit, width, width_limit, lost and isinstance(speed, Absent))


def list_path_links(chain: Sequence[str], roles: Mapping[str, str]) -> tuple[PcieLink, ...]:
    """Return the links from a device, the last of a chain, up to the root port; none for a root port.

    `roles` identifies the bridges: other devices above, such as Intel's VMD, are not PCI Express. A device
    directly below a host bridge has a port there that is not visible, as in virtual machines.
    """
    *above, device = chain
    ports = [address for address in above if roles.get(address) == BRIDGE]
    if not ports:
        return () if roles.get(device) == BRIDGE else (PcieLink("", device),)
    ends = [*ports, device]
    # Ports alternate: root port and upstream port, downstream port and device. A downstream port at the end
    # has no link above it.
    pairs = zip(ends[::2], ends[1::2], strict=False)
    return tuple(PcieLink(upper, lower) for upper, lower in pairs)


def path_limit(path: Sequence[PcieLink], states: Mapping[str, PcieLinkState]) -> Reading:
    """Return the capacity of a path; a reason if one of its links does not report it."""
    return _smallest_bandwidth([_limit(link, states) for link in path])


def path_bandwidth(path: Sequence[PcieLink], states: Mapping[str, PcieLinkState]) -> Reading:
    """Return the present bandwidth of a path."""
    now = [states.get(link.lower, UNKNOWN_LINK_STATE) for link in path]
    return _smallest_bandwidth([_bandwidth(state.speed, state.width) for state in now])


def path_state(
    path: Sequence[PcieLink], states: Mapping[str, PcieLinkState], sleeps: IsSavingPower
) -> Reading:
    """Return the state of a path: full speed, power saving, degraded or lost.

    A link that would limit the path even at its full speed has lost lanes, and is degraded whatever its
    device does. One that limits it by its present speed alone is degraded unless its device may be saving
    power; if that is unknown there is no verdict.
    """
    if path and states.get(path[-1].lower, UNKNOWN_LINK_STATE).lost:
        return LOST
    limit = path_limit(path, states)
    if isinstance(limit, Absent):
        return limit
    link_states: list[Reading] = [_state(link, states, limit, sleeps) for link in path]
    if DEGRADED in link_states:
        return DEGRADED
    unknown = [reading for reading in link_states if isinstance(reading, Absent)]
    if unknown:
        return unknown[0]
    return POWER_SAVING if POWER_SAVING in link_states else FULL


def _state(
    link: PcieLink, states: Mapping[str, PcieLinkState], limit: int, sleeps: IsSavingPower
) -> Reading:
    state = states.get(link.lower, UNKNOWN_LINK_STATE)
    now = _bandwidth(state.speed, state.width)
    if isinstance(now, Absent):
        return now
    if now >= limit:
        return FULL
    fastest = _smaller_limit(link, states, "speed_limit")
    at_best = _bandwidth(fastest, state.width)
    if isinstance(at_best, Absent) or at_best < limit:
        return at_best if isinstance(at_best, Absent) else DEGRADED
    # Queried last: most links are at full speed, and need no answer about their device.
    asleep = sleeps(link.lower)
    if isinstance(asleep, Absent):
        return asleep
    return POWER_SAVING if asleep else DEGRADED


def _limit(link: PcieLink, states: Mapping[str, PcieLinkState]) -> Reading:
    speed, width = (
        _smaller_limit(link, states, quantity) for quantity in ("speed_limit", "width_limit")
    )
    return _bandwidth(speed, width)


def _smaller_limit(link: PcieLink, states: Mapping[str, PcieLinkState], quantity: str) -> Reading:
    ends = [
        getattr(states.get(end, UNKNOWN_LINK_STATE), quantity) for end in (link.upper, link.lower)
    ]
    return _smallest_bandwidth(ends)


def _bandwidth(speed: Reading, width: Reading) -> Reading:
    if isinstance(speed, Absent) or isinstance(width, Absent):
        return speed if isinstance(speed, Absent) else width
    return link_bandwidth(speed, width)


def _smallest_bandwidth(readings: Sequence[Reading]) -> Reading:
    unknown = [reading for reading in readings if isinstance(reading, Absent)]
    if unknown or not readings:
        return unknown[0] if unknown else Absent.UNSUPPORTED
    return min(reading for reading in readings if not isinstance(reading, Absent))
