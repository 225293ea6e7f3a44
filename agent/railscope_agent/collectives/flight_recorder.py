"""Dumps of PyTorch's flight recorder: the last collectives of one rank, by process group.

Source: pytorch/pytorch torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp. A dump is a pickle
(`TORCH_FR_DUMP_TEMP_FILE`) or JSON (`dump_nccl_trace_json` and `fr_trace_json` of the worker server). JSON has texts in place of the integers of
`pg_status`, 0 in place of unknown times, and no stacks. `pg_status` has the local number of a group as key, `pg_config`
its name. Entries of Gloo remain `scheduled`: only `pg_status` has their progress, and the ranks of its groups are not recorded.

Of each group remain the last collective that completed and the first ones that did not. Point-to-point operations are
left out: their order differs between ranks. So are entries without a sequence number, which are damaged.

A small file can contain a large value many times: entries refer to groups by name, and values of a pickle to each other. So
texts and ranks are bounded by the memory of the result.
"""

from __future__ import annotations

import functools
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from railscope.reading import SIGNED_LIMIT
from railscope.untrusted_text import DECODING_ERRORS, printable
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.pickled_literals import read_literals

MAX_ENTRIES, MAX_GROUPS = 20_000, 256
MAX_JSON_VALUES = 1_000_000
"""A dump of 8 MiB has 520,000, counted by what separates them; the 2,790,000 empty lists of a hostile one take 184 MiB."""
MAX_COLLECTIVES = 64
"""Maximum number of collectives of a group in the result."""
MAX_FRAMES, MAX_TENSORS, MAX_DIMENSIONS, MAX_RANKS = 16, 16, 8, 1 << 16
MAX_TEXT = 256
MAX_RESULT_BYTES = 8 << 20
"""Maximum memory of a parsed dump: 233,000 ranks in all of its groups, or 2,500 incomplete collectives with stacks of 3 KiB."""
_RANK_BYTES, _COLLECTIVE_BYTES, _GROUP_BYTES = 36, 256, 512
UNKNOWN = -1
"""Sequence number of a group in which no collective was recorded."""
_RANK_LIST = re.compile(r"\[([\d, ]{0,500000})\]")
_STATES = ("scheduled", "started", "completed")


class RecordedCollective(msgspec.Struct, frozen=True, omit_defaults=True):
    """One collective as a rank recorded it. `created_ns` is on the wall clock, 0 if unknown."""

    sequence: int
    kind: str
    shapes: str = ""
    types: str = ""
    state: str = "scheduled"
    created_ns: int = 0
    stack: list[str] = []

    @property
    def name(self) -> str:
        """Kind without the backend: `all_reduce` of `nccl:all_reduce`."""
        return self.kind.rpartition(":")[2]

    @property
    def memory_bytes(self) -> int:
        """Estimated memory."""
        return _COLLECTIVE_BYTES + _text_bytes(self.kind, self.shapes, self.types, *self.stack)


class RecordedGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process group of a rank, with the sequence numbers of its last collectives; `ranks` is empty if not recorded."""

    name: str
    description: str = ""
    ranks: list[int] = []
    enqueued: int = UNKNOWN
    completed: int = UNKNOWN
    collectives: list[RecordedCollective] = []

    def find_collective(self, sequence: int) -> RecordedCollective | None:
        """Return the recorded collective with a sequence number."""
        return next((c for c in self.collectives if c.sequence == sequence), None)

    @property
    def first_incomplete(self) -> RecordedCollective | None:
        """Collective with the lowest number that has not completed."""
        return next((c for c in self.collectives if c.sequence > self.completed), None)

    @property
    def memory_bytes(self) -> int:
        """Estimated memory."""
        ranks_bytes = _GROUP_BYTES + _RANK_BYTES * len(self.ranks)
        texts_bytes = _text_bytes(self.name, self.description)
        return ranks_bytes + texts_bytes + sum(c.memory_bytes for c in self.collectives)


class FlightRecorderDump(msgspec.Struct, frozen=True, omit_defaults=True):
    """Process groups of one rank, in the order of their first collective."""

    groups: list[RecordedGroup] = []

    @property
    def memory_bytes(self) -> int:
        """Estimated memory."""
        return sum(group.memory_bytes for group in self.groups)


def parse_dump(content: bytes) -> FlightRecorderDump:
    """Parse a dump, as pickle or JSON. Raises CollectiveFormatError."""
    groups: list[RecordedGroup] = []
    remaining_bytes = MAX_RESULT_BYTES
    for group in _groups(_decode(content)):
        remaining_bytes -= group.memory_bytes
        if remaining_bytes < 0:
            message = f"more than {MAX_RESULT_BYTES} bytes of ranks and texts in its groups"
            raise CollectiveFormatError(message)
        groups.append(group)
    return FlightRecorderDump(groups)


def _decode(content: bytes) -> dict[str, Any]:
    if content[:1] == b"{":
        # Counted before decoding: objects of Python are many times larger than their text, and exist before
        # any other check.
        if sum(map(content.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
            message = f"more than {MAX_JSON_VALUES} values in JSON"
            raise CollectiveFormatError(message)
        try:
            dump = msgspec.json.decode(content)
        except DECODING_ERRORS as error:
            message = f"invalid JSON: {error}"
            raise CollectiveFormatError(message) from error
    else:
        dump = read_literals(content)
    # A dump without entries is valid: PyTorch can be asked for the progress of groups alone.
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        message = "expected a dictionary with a list of entries"
        raise CollectiveFormatError(message)
    version = _text(dump.get("version"))
    if not version.startswith("2."):
        message = f"flight recorder version {version!r}: expected 2.x"
        raise CollectiveFormatError(message)
    return dump


def _groups(dump: dict[str, Any]) -> Iterator[RecordedGroup]:
    statuses, configs = _mapping(dump.get("pg_status")), _mapping(dump.get("pg_config"))
    entries: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in dump.get("entries", [])[-MAX_ENTRIES:]:  # the last ones are the newest
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            # Names are printable only in the result: `pg_config` has them as they are in the entries.
            name, description = [*map(_cut, _items(entry.get("process_group"), 2)), "", ""][:2]
            key = str(_integer(entry.get("pg_id"))), name, description
            # Groups beyond the bound are left out, but the known ones still get their entries.
            if key in entries or len(entries) < MAX_GROUPS:
                entries.setdefault(key, []).append(entry)
    parse_ranks = functools.cache(_ranks)  # groups of a pickle may have one text
    for (number, name, description), of_group in entries.items():
        status, config = _mapping(statuses.get(number)), _mapping(configs.get(name))
        by_sequence = {
            sequence: entry
            for entry in reversed(of_group)
            if (sequence := _integer(entry.get("collective_seq_id"), UNKNOWN)) != UNKNOWN
        }
        recorded = [n for n, entry in by_sequence.items() if entry.get("state") == "completed"]
        # The status may be newer than the entries, or missing.
        completed = max(
            [_integer(status.get("last_completed_collective"), UNKNOWN), *recorded],
        )
        enqueued = _integer(status.get("last_enqueued_collective"), UNKNOWN)
        ranks = config.get("ranks")
        yield RecordedGroup(
            printable(name),
            printable(description),
            parse_ranks(ranks) if isinstance(ranks, str) else [],
            max([enqueued, *by_sequence]),
            completed,
            [_collective(by_sequence[n]) for n in _around(sorted(by_sequence), completed)],
        )


def _around(ordered: list[int], completed: int) -> list[int]:
    """Return the last completed collective and the first ones that are not completed, by sequence number."""
    done = bisect_right(ordered, completed)
    return ordered[max(done - 1, 0) : done + MAX_COLLECTIVES - 1]


def _collective(entry: dict[str, Any]) -> RecordedCollective:
    state = _text(entry.get("state"))
    return RecordedCollective(
        sequence=_integer(entry.get("collective_seq_id")),
        kind=_text(entry.get("profiling_name")),
        shapes=_shapes(entry.get("input_sizes")),
        types=" ".join(map(_text, _items(entry.get("input_dtypes"), MAX_TENSORS))),
        state=state if state in _STATES else "scheduled",
        created_ns=_integer(entry.get("time_created_ns")),
        stack=[
            f"{_text(frame.get('filename'))}:{_integer(frame.get('line'))} {_text(frame.get('name'))}"
            for frame in map(_mapping, _items(entry.get("frames"), MAX_FRAMES))
        ],
    )


def _shapes(sizes: object) -> str:
    """Return the shapes of tensors as a text: `[2, 1024] [16]`."""
    shapes = (
        [str(_integer(size)) for size in _items(shape, MAX_DIMENSIONS)]
        for shape in _items(sizes, MAX_TENSORS)
    )
    return " ".join(f"[{', '.join(shape)}]" for shape in shapes)


def _ranks(text: str) -> list[int]:
    """Parse `[0, 1, 2]`; empty if it is anything else."""
    match = _RANK_LIST.fullmatch(text)
    numbers = match[1].replace(" ", "").split(",") if match else []
    # The length is checked first: conversion of a long text of digits takes quadratic time.
    ranks = {int(number) for number in numbers[:MAX_RANKS] if 0 < len(number) < len(str(1 << 31))}
    return sorted(rank for rank in ranks if rank < MAX_RANKS)


def _items(value: object, limit: int) -> Iterable[Any]:
    return islice(value, limit) if isinstance(value, list | tuple) else ()


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _cut(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _text(value: object) -> str:
    return printable(_cut(value))


def _text_bytes(*texts: str) -> int:
    return sum(map(sys.getsizeof, texts))


def _integer(value: object, default: int = 0) -> int:
    """Return an integer, also one in a text; the default if it is neither or exceeds 64 bits."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    # Not isinstance: a bool is an int, and True is not a number of a dump.
    if type(value) is not int or not -SIGNED_LIMIT <= value < SIGNED_LIMIT:
        return default
    return value
