"""Output of `nvidia-smi nvlink --status`, converted to the underlying answers of NVML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.nvidia_smi import MILLI, Answers, Row, number

_GPU = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-\S+)\)")
_LINK = re.compile(r"\s+Link (\d+): (?:(\S+) GB/s|<inactive>)")
_ACTIVE, _INACTIVE = 1, 0
_COUNT, _SPEED, _STATE = 91, 164, 165


@dataclass
class LinkedGpu:
    """A GPU and the speed of each of its links, as printed in GB/s; None for one that is down."""

    index: int
    name: str
    uuid: str
    links: list[str | None] = field(default_factory=list)

    @property
    def row(self) -> Row:
        """Return a minimal row of a GPU; its bus address is invented."""
        bus = f"00000000:{self.index + 1:02X}:00.0"
        return {"name": self.name, "uuid": self.uuid, "pci.bus_id": bus}


def status(printed: str) -> list[LinkedGpu]:
    """Return the GPUs of a listing, in its order. A partitioned (MIG-enabled) GPU reports no links."""
    found: list[LinkedGpu] = []
    for line in printed.splitlines():
        if gpu := _GPU.match(line):
            found.append(LinkedGpu(int(gpu[1]), gpu[2], gpu[3]))
        elif link := _LINK.match(line):
            assert int(link[1]) == len(found[-1].links)
            found[-1].links.append(link[2])
    return found


def links(gpu: int, speeds: Sequence[str | None]) -> Answers:
    """Return the answers about the links of a GPU; NVML reports speeds in MB/s."""
    entries: dict[int | str, int] = {_COUNT: len(speeds)}
    for link, speed in enumerate(speeds):
        entries[f"{_STATE}:{link}"] = _INACTIVE if speed is None else _ACTIVE
        if speed is not None:
            entries[f"{_SPEED}:{link}"] = number(speed, MILLI)
    return {f"nvml.nvmlDeviceGetFieldValues({gpu},{e})": [0, value] for e, value in entries.items()}
