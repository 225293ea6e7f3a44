"""Which device each index of Slurm's generic resources is: gres.conf, or what `slurmd -G` prints.

Indices (IDX) count the devices in the order of gres.conf, and are not the numbers of NVML. With
AutoDetect it is slurmd that finds and orders devices: then only `slurmd -G` tells.
Sources: SchedMD/slurm:doc/man/man5/gres.conf.5, src/interfaces/gres.c.
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
    """A device by its index, with its type and its files."""

    index: int
    type: str
    files: tuple[str, ...]

    @property
    def minor(self) -> int | None:
        """N of its /dev/nvidiaN: a GPU, or the one that a MIG device is of. None without such a file."""
        found = [_DEVICE.fullmatch(file) for file in self.files]
        return next((int(device[1]) for device in found if device), None)


@dataclass(frozen=True, slots=True)
class GresConf:
    """The devices of one node that the file names, and who finds others (`nvml`); empty for no one."""

    devices: tuple[Device, ...]
    auto_detect: str

    @property
    def is_certain(self) -> bool:
        """Whether the indices are those of Slurm: where it finds devices itself, it orders them."""
        return not self.auto_detect


def parse_gres_conf(text: str, node: str, name: str = "gpu") -> GresConf:
    """The devices of one resource that gres.conf gives to a node. Raises FormatError."""
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
    """The devices of one resource by what `slurmd -G` prints, in their order. Raises FormatError."""
    devices: list[Device] = []
    for line in text.split("\n"):
        printed = _PRINTED.search(line)
        fields = _pairs(printed[1]) if printed else {}
        if fields.get("name") == name:
            devices += _devices(fields, len(devices))
    return tuple(devices)


def _lines(text: str) -> Iterator[dict[str, str]]:
    """The settings of each line: comments are cut off, and lines that go on are joined."""
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
    """The devices of a line: one for each file, or one that has several."""
    kind = fields.get("type", "")
    kind = "" if kind == "(null)" else kind
    if "multiplefiles" in fields:
        return [Device(first, kind, expand(fields["multiplefiles"]))]
    files = expand(fields.get("file", ""))
    if fields.get("count") == "1" and len(files) > 1:
        return [Device(first, kind, files)]  # slurmd prints all files of one device so
    return [Device(first + place, kind, (file,)) for place, file in enumerate(files)]
