"""Slurm's notation of generic resources (GRES) and of trackable resources (TRES).

  gpu:h100:4(IDX:0-3)      four GPUs by their index in gres.conf
  gpu(CNT:1)               one, which is not counted by device
  shard:8(8/16,0/16)       shares of GPUs: for each GPU in index order, allocated of total
  gres/gpu:h100=4          in a list of trackable resources (TRES)

Sources: SchedMD/slurm:src/interfaces/gres.c, src/stepmgr/gres_stepmgr.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from railscope.slurm import SlurmFormatError
from railscope.slurm.node_lists import expand_numbers

MAX_INDICES = 1024

# A comma that is not within parentheses.
_SEPARATOR = re.compile(r",(?![^()]*\))")
_ENTRY = re.compile(r"([^:()=]+)((?::[^:()=]+)*)((?:\([^()]*\))*)")
_DETAIL = re.compile(r"\(([^()]*)\)")
_SHARES = re.compile("[0-9]{1,19}/[0-9]{1,19}(?:,[0-9]{1,19}/[0-9]{1,19})*")
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([KMGTPE]?)")
_POWERS = {suffix: 1024**power for power, suffix in enumerate(["", *"KMGTPE"])}
_NO_RESOURCES = {"", "(null)", "N/A"}
_MIG_PROFILE = re.compile(r"(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb")


@dataclass(frozen=True, slots=True)
class ShardShare:
    """Shares of one GPU: number allocated, and total."""

    allocated: int
    total: int


@dataclass(frozen=True, slots=True)
class Gres:
    """Resource on one node. Indices and shares are None if Slurm does not report them.

    An index is a position in gres.conf, not the number of a device: see gres_conf.
    """

    name: str
    type: str
    count: int
    indices: tuple[int, ...] | None = None
    shares: tuple[ShardShare, ...] | None = None


def mig_profile(text: str) -> str:
    """Return the MIG profile in a type such as `nvidia_a100_1g.5gb`, or in a name of NVML; empty without one."""
    match = _MIG_PROFILE.search(text)
    return match[0] if match else ""


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse the resources of one node: entries with commas between and within them. Raises SlurmFormatError."""
    if text in _NO_RESOURCES:
        return ()
    return tuple(_entry(entry) for entry in _SEPARATOR.split(text))


def parse_tres(text: str) -> dict[str, int]:
    """Return generic resources by name from a list such as `cpu=24,gres/gpu=2,gres/gpu:h100=2`.

    The name is the text after `gres/`; an entry with a type repeats the same devices. Values in bytes
    stay in bytes. Raises SlurmFormatError.
    """
    counts: dict[str, int] = {}
    for entry in [] if text in _NO_RESOURCES else text.split(","):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise _invalid_resource(entry)
        if name.startswith("gres/"):
            if name in counts:
                message = f"duplicate {name}: expected it once"
                raise SlurmFormatError(message)
            counts[name] = _quantity(amount)
    return {name.removeprefix("gres/"): count for name, count in counts.items()}


def _entry(entry: str) -> Gres:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise _invalid_resource(entry)
    parts = match[2].split(":")[1:]
    # `gpu:4` has a count and no type, `gpu:h100` a type and no count.
    counted = bool(parts) and _QUANTITY.fullmatch(parts[-1]) is not None
    count = _quantity(parts.pop()) if counted else None
    indices: tuple[int, ...] | None = None
    shares: tuple[ShardShare, ...] | None = None
    for detail in _DETAIL.findall(match[3]):
        kind, _, value = detail.partition(":")
        if kind == "IDX":
            indices = expand_numbers(value, MAX_INDICES) if value else ()
        elif kind == "CNT":
            count = _quantity(value)
        elif _SHARES.fullmatch(detail):
            shares = tuple(ShardShare(*map(int, pair.split("/"))) for pair in detail.split(","))
        elif kind != "S":  # not a list of nearby sockets
            raise _invalid_resource(entry)
    return Gres(match[1], ":".join(parts), 1 if count is None else count, indices, shares)


def _quantity(text: str) -> int:
    """Parse a count, or bytes with a binary suffix; Slurm prints them rounded to two digits."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _invalid_resource(text)
    return int(Fraction(match[1]) * _POWERS[match[2]])


def _invalid_resource(text: str) -> SlurmFormatError:
    return SlurmFormatError(f"invalid generic resource {text[:200]!r}: expected Slurm's notation")
