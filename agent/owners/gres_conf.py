"""Devices by index of Slurm's generic resources: gres.conf, or the output of `slurmd -G`.

Indices (IDX) count the devices in the order of gres.conf and are not NVML indices. With AutoDetect, slurmd
finds and orders the devices, and only `slurmd -G` shows the order. Sources:
SchedMD/slurm:doc/man/man5/gres.conf.5, src/interfaces/gres.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent.owners import FormatError
from railscope.slurm.hostlist import expand

_DEVICE = re.compile(r"/dev/nvidia([0-9]{1,4})")
_PAIR = re.compile(r'([A-Za-z_]+)=(?:"([^"]*)"|(\S*))')
_PRINTED = re.compile(r"\bGres (Name=.*)")
_OFF = {"", "off"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device with its index, type and files."""

    index: int
    type: str
    files: tuple[str, ...]

    @property
    def minor(self) -> int | None:
        """Minor number of its /dev/nvidiaN, which for a MIG device is that of its GPU. None without one."""
        found = [_DEVICE.fullmatch(file) for file in self.files]
        return next((int(device[1]) for device in found if device), None)


@dataclass(frozen=True, slots=True)
class GresConf:
    """Devices that the file names for one node, and the AutoDetect method (`nvml`); empty if off."""

    devices: tuple[Device, ...]
    auto_detect: str

    @property
    def is_certain(self) -> bool:
        """True if the indices are those of Slurm; with AutoDetect, slurmd orders the devices."""
        return not self.auto_detect


def parse_gres_conf(text: str, node: str, name: str = "gpu") -> GresConf:
    """Return the devices of one resource that gres.conf assigns to a node. Raises FormatError."""
    everywhere, here = "", None
    devices: list[Device] = []
    for fields in _lines(text):
        if "nodename" in fields and node not in expand(fields["nodename"]):
            continue
        if "autodetect" in fields:
            if "nodename" in fields:
                here = fields["autodetect"]
            else:
                everywhere = fields["autodetect"]
        if fields.get("name") == name:
            devices += _devices(fields, len(devices))
    detects = (everywhere if here is None else here).lower()
    return GresConf(tuple(devices), "" if detects in _OFF else detects)


def parse_slurmd(text: str, name: str = "gpu") -> tuple[Device, ...]:
    """Return the devices of one resource in the order of `slurmd -G`. Raises FormatError."""
    devices: list[Device] = []
    for line in text.split("\n"):
        printed = _PRINTED.search(line)
        fields = _pairs(printed[1]) if printed else {}
        if fields.get("name") == name:
            devices += _devices(fields, len(devices))
    return tuple(devices)


def _lines(text: str) -> Iterator[dict[str, str]]:
    """Yield the settings of each line, without comments and with continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for whole in joined.split("\n"):
        line = whole.partition("#")[0].strip()
        if not line:
            continue
        if line.lower().startswith("include "):
            message = f"{line[:200]!r}: what it includes is not here"
            raise FormatError(message)
        fields = _pairs(line)
        if not fields:
            message = f"{line[:200]!r} is no line of gres.conf"
            raise FormatError(message)
        yield fields


def _pairs(line: str) -> dict[str, str]:
    return {key.lower(): quoted or plain for key, quoted, plain in _PAIR.findall(line)}


def _devices(fields: dict[str, str], first: int) -> list[Device]:
    """Return the devices of a line: one per file, or one with several files."""
    kind = fields.get("type", "")
    kind = "" if kind == "(null)" else kind
    if "multiplefiles" in fields:
        return [Device(first, kind, expand(fields["multiplefiles"]))]
    files = expand(fields.get("file", ""))
    if fields.get("count") == "1" and len(files) > 1:
        return [Device(first, kind, files)]  # slurmd prints all files of one device in this form
    return [Device(first + place, kind, (file,)) for place, file in enumerate(files)]
