"""Retired GPUs: times in which a GPU has no capacity in the account, with the reason.

CSV with the columns gpu, from, to, why. `gpu` is a UUID; times are RFC 3339 with an offset; an
empty `to` means permanently, otherwise the GPU is back from then on. Observations of such a GPU in
the meantime stay in the evidence, and count again if the row is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collector.files.watched import FileError, Watched, columns_span, rows
from collector.metering.evidence import Claim, Stay
from collector.metering.timeline import Piece, without

HEADER = ("gpu", "from", "to", "why")
MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True, order=True)
class Retirement:
    """A GPU is retired in [start, end)."""

    start_ns: int
    end_ns: int
    gpu: str
    why: str = ""


@dataclass(frozen=True)
class Retired:
    """All rows of the file, by GPU."""

    by_gpu: dict[str, tuple[Retirement, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[Retirement]) -> Retired:
        """Build from rows in any order."""
        grouped: dict[str, list[Retirement]] = {}
        for one in found:
            grouped.setdefault(one.gpu, []).append(one)
        return cls({gpu: tuple(sorted(some)) for gpu, some in sorted(grouped.items())})

    def __iter__(self) -> Iterator[Retirement]:
        return (one for some in self.by_gpu.values() for one in some)

    def at(self, gpu: str, instant_ns: int) -> Retirement | None:
        """The row by which a GPU is retired at an instant; None if it is not."""
        for one in self.by_gpu.get(gpu, ()):
            if one.start_ns <= instant_ns < one.end_ns:
                return one
        return None

    def in_service(self, gpu: str, stays: Iterable[Stay]) -> tuple[Stay, ...]:
        """The stays of a GPU without the time in which it is retired."""
        retired = self.by_gpu.get(gpu, ())
        if not retired:
            return tuple(stays)
        spans = [(one.start_ns, one.end_ns) for one in retired]
        return tuple(
            Stay(piece.start_ns, stay.node, piece.end_ns)
            for stay in stays
            for piece in without(Piece(stay.start_ns, stay.end_ns, stay), spans)
        )

    def held(self, gpu: str, claim: Claim) -> Iterator[Claim]:
        """A claim without the time in which its GPU is retired; the part after it is another claim."""
        spans = [(one.start_ns, one.end_ns) for one in self.by_gpu.get(gpu, ())]
        for start, end, _ in without(Piece(claim.start_ns, claim.end_ns, claim), spans):
            name = claim.id if start == claim.start_ns else f"{claim.id}#{start}"
            yield msgspec.structs.replace(claim, id=name, start_ns=start, end_ns=end)


def parse(text: str) -> Retired:
    """Parse retirements from the text of a file. Raises FileError that names line and column."""
    found: set[Retirement] = set()
    for number, (gpu, start, end, why) in rows(text, HEADER):
        line = f"line {number}"
        for column, word in (("gpu", gpu), ("why", why)):
            if len(word) > MAX_CHARACTERS:
                message = f"{line}, {column}: it is longer than {MAX_CHARACTERS} characters"
                raise FileError(message)
        if not gpu:
            message = f"{line}, gpu: it is empty"
            raise FileError(message)
        found.add(Retirement(*columns_span(start, end, line), gpu, why))
    return Retired.of(found)


def retired_file(path: Path | None) -> Watched[Retired]:
    """The watched file of retired GPUs of a path."""
    return Watched("retired", path, parse, Retired())
