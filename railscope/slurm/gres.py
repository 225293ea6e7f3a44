"""Slurm's generic resources: allocation of a job on a node, and counts over all of its nodes.

  gpu:h100:4(IDX:0-3)      four GPUs by their index in gres.conf
  gpu(CNT:1)               one, which is not counted by device
  shard:8(8/16,0/16)       shares of GPUs: for each GPU in index order, allocated of total
  gres/gpu:h100=4          in a list of trackable resources (TRES)

Sources: SchedMD/slurm:src/interfaces/gres.c, src/stepmgr/gres_stepmgr.c, src/common/slurm_protocol_defs.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from railscope.slurm import FormatError
from railscope.slurm.hostlist import numbers

MAX_INDICES = 1024


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of one GPU: number allocated, and total."""

    taken: int
    there: int


@dataclass(frozen=True, slots=True)
class Gres:
    """Resource on one node. Indices and shares are None if Slurm does not report them.

    An index is a position in gres.conf, not the number of a device: see gres_conf.
    """

    name: str
    type: str
    count: int
    indices: tuple[int, ...] | None = None
    shares: tuple[Share, ...] | None = None


_SEPARATOR = re.compile(r",(?![^()]*\))")
_ENTRY = re.compile(r"([^:()=]+)((?::[^:()=]+)*)((?:\([^()]*\))*)")
_DETAIL = re.compile(r"\(([^()]*)\)")
_SHARES = re.compile("[0-9]{1,19}/[0-9]{1,19}(?:,[0-9]{1,19}/[0-9]{1,19})*")
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([KMGTPE]?)")
_POWERS = {suffix: 1024**power for power, suffix in enumerate(["", *"KMGTPE"])}
_NONE = {"", "(null)", "N/A"}


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse the resources of one node: entries with commas between and within them. Raises FormatError."""
    if text in _NONE:
        return ()
    return tuple(_entry(entry) for entry in _SEPARATOR.split(text))


def parse_tres(text: str) -> dict[str, int]:
    """Return generic resources by name from a list such as `cpu=24,gres/gpu=2,gres/gpu:h100=2`.

    The name is the text after `gres/`; an entry with a type repeats the same devices. Values in bytes
    stay in bytes. Raises FormatError.
    """
    counts: dict[str, int] = {}
    for entry in [] if text in _NONE else text.split(","):
        name, equals, amount = entry.partition("=")
        if not equals:
            raise _wrong(entry)
        if name.startswith("gres/"):
            if name in counts:
                message = f"{name} is there twice"
                raise FormatError(message)
            counts[name] = _quantity(amount)
    return {name.removeprefix("gres/"): count for name, count in counts.items()}


def _entry(entry: str) -> Gres:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise _wrong(entry)
    words = found[2].split(":")[1:]
    counted = bool(words) and _QUANTITY.fullmatch(words[-1]) is not None
    count = _quantity(words.pop()) if counted else None
    indices: tuple[int, ...] | None = None
    shares: tuple[Share, ...] | None = None
    for detail in _DETAIL.findall(found[3]):
        kind, _, value = detail.partition(":")
        if kind == "IDX":
            indices = numbers(value, MAX_INDICES) if value else ()
        elif kind == "CNT":
            count = _quantity(value)
        elif _SHARES.fullmatch(detail):
            shares = tuple(Share(*map(int, pair.split("/"))) for pair in detail.split(","))
        elif kind != "S":  # not a list of nearby sockets
            raise _wrong(entry)
    return Gres(found[1], ":".join(words), 1 if count is None else count, indices, shares)


def _quantity(text: str) -> int:
    """Parse a count, or bytes with a binary suffix; Slurm prints them rounded to two digits."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise _wrong(text)
    return int(Fraction(found[1]) * _POWERS[found[2]])


def _wrong(text: str) -> FormatError:
    return FormatError(f"{text[:200]!r} is no generic resource as Slurm writes it")
