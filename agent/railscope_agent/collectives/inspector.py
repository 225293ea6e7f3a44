"""Logs of NCCL's profiler plugin Inspector, JSON formats 4.0 to 4.3: one line per collective of a process.

Source: NVIDIA/nccl plugins/profiler/inspector (inspector_json.cc). In 4.0 and 4.2 each line has the header of its
communicator; in 4.3 a line with `dump_stats` has that of the lines after it. A log is read in parts: lines before
the first header of a part belong to the header before it.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Annotated

import msgspec

from railscope.untrusted_text import DECODING_ERRORS
from railscope_agent.collectives import COMPARED_KINDS

MAX_PART_BYTES = 256 << 10
MAX_LINE_BYTES = 64 << 10
"""Maximum length of a line; a verbose one of 64 channels has 14 KiB."""
MAX_RANKS = 1 << 20
MAX_DURATION_NS = 3600 * 10**9
MAX_BANDWIDTH_GBS = 1e5
COMPARED_SOURCE = "kernel_gpu"
"""Source of times that are compared between ranks: the clock of the GPU."""
_MICROSECOND_NS = 1000
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=MAX_DURATION_NS // _MICROSECOND_NS)]
_Bandwidth = Annotated[float, msgspec.Meta(ge=0, le=MAX_BANDWIDTH_GBS)]
_Name = Annotated[str, msgspec.Meta(max_length=64)]
_SequenceNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class InspectorHeader(msgspec.Struct, frozen=True):
    """Communicator of the lines that follow, and the rank of the process in it."""

    id: _Name
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    n_ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    comm_name: Annotated[str, msgspec.Meta(max_length=256)] = ""


class InspectedCall(msgspec.Struct, frozen=True, array_like=True):
    """A completed collective, or a point-to-point operation, of one rank.

    `header` is the position in the headers of the part, or -1 for the last one before it. `bus_bytes` is the product of
    bus bandwidth and duration, which can be added up where a bandwidth cannot.
    """

    header: int
    kind: str
    sequence: int
    bytes: int
    duration_ns: int
    bus_bytes: int
    is_compared: bool


class InspectorPart(msgspec.Struct, frozen=True):
    """Whole lines of a part of a log, from `start` to `end`.

    `start` is beyond the requested offset if no line begins there. `is_midline` is True if no line begins at `end`.
    `lines` counts the lines by state, `dropped` the operations that the plugin dropped. `last_header` is that of the
    next part: a position, -1 for the last one before this part, None if it is unknown.
    """

    start: int
    end: int
    is_midline: bool = False
    headers: list[InspectorHeader] = []
    calls: list[InspectedCall] = []
    lines: dict[str, int] = {}
    dropped: int = 0
    last_header: int | None = -1


class _Metadata(msgspec.Struct, frozen=True):
    version: _Name = msgspec.field(name="inspector_output_format_version")


class _Collective(msgspec.Struct, frozen=True):
    coll: _Name
    coll_sn: _SequenceNumber
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Time
    coll_timing_source: _Name = ""
    coll_busbw_gbs: _Bandwidth = 0.0


class _PointToPoint(msgspec.Struct, frozen=True):
    p2p: _Name
    p2p_sn: _SequenceNumber
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Time
    p2p_busbw_gbs: _Bandwidth = 0.0


class _DumpStatistics(msgspec.Struct, frozen=True):
    coll_dropped_since_last_dump: _Count = 0
    p2p_dropped_since_last_dump: _Count = 0


class _LogLine(msgspec.Struct, frozen=True):
    header: InspectorHeader | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _DumpStatistics | None = None


class _LineHeader(msgspec.Struct, frozen=True):
    """Header of a line with an operation that cannot be read."""

    header: InspectorHeader | None = None
    metadata: _Metadata | None = None


_decoder = msgspec.json.Decoder(_LogLine)
_header_decoder = msgspec.json.Decoder(_LineHeader)
_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")


@lru_cache(1024)
def _is_name(text: str) -> bool:
    """True for the number of a communicator and the kind of a collective; a pattern for each line takes longer."""
    return _NAME.fullmatch(text) is not None


def parse_part(content: bytes, offset: int) -> InspectorPart:
    """Parse the whole lines of a log from an offset; `content` begins with the byte before it, if there is one."""
    first = max(offset - 1, 0)
    # Without the byte before the offset it would be unknown whether a line begins there or the offset is
    # inside of one.
    is_aligned = not offset or content[:1] == b"\n"
    begin = offset - first if is_aligned else content.find(b"\n") + 1 or len(content)
    end = max(content.rfind(b"\n") + 1, begin)
    parser = _PartParser(-1 if is_aligned else None)
    # A whole part without a line break: it is passed, or the same bytes would be read each time. A shorter
    # content is a line that is still being written.
    if is_aligned and end == begin and len(content) >= MAX_PART_BYTES:
        end = len(content)
        parser.reject("too_long")
    else:
        for line in content[begin:end].split(b"\n")[:-1]:
            parser.add(line)
    return InspectorPart(
        first + begin,
        first + end,
        end > 0 and content[end - 1 : end] != b"\n",
        list(parser.headers),
        parser.calls,
        parser.lines,
        parser.dropped,
        parser.last_header,
    )


class _PartParser:
    """Lines of a part, and the header of the next one."""

    def __init__(self, last_header: int | None) -> None:
        self.last_header = last_header
        self.headers: dict[InspectorHeader, int] = {}
        self.calls: list[InspectedCall] = []
        self.lines: Counter[str] = Counter()
        self.dropped = 0

    def reject(self, state: str, line: bytes = b"") -> None:
        """Count a rejected line. The next ones have its header, which is unknown if that cannot be read either."""
        self.lines[state] += 1
        try:
            content = _header_decoder.decode(line)
        except DECODING_ERRORS:
            self.last_header = None
            return
        if not (_is_supported(content.metadata) and _has_name(content.header)):
            self.last_header = None
        elif content.header:
            self._use_header(content.header)

    def _use_header(self, header: InspectorHeader) -> None:
        self.last_header = self.headers.setdefault(header, len(self.headers))

    def add(self, line: bytes) -> None:
        """Add a line, or reject it."""
        if len(line) > MAX_LINE_BYTES:
            self.reject("too_long")
            return
        try:
            content = _decoder.decode(line)
        except DECODING_ERRORS:
            self.reject("malformed", line)
            return
        call = content.coll_perf or content.p2p_perf
        if not _is_supported(content.metadata):
            self.reject("unsupported", line)
        elif (call is None and content.dump_stats is None) or not _has_names(content.header, call):
            self.reject("malformed", line)
        else:
            if content.header:
                self._use_header(content.header)
            if statistics := content.dump_stats:
                self.dropped += statistics.coll_dropped_since_last_dump
                self.dropped += statistics.p2p_dropped_since_last_dump
            # Its communicator was in a line that could not be read: the header before that line may be
            # another one.
            if call and self.last_header is None:
                self.lines["headless"] += 1
                return
            self.lines["read"] += 1
            if call:
                self.calls.append(_inspected(call, self.last_header or 0))


def _is_supported(metadata: _Metadata | None) -> bool:
    # Lines without metadata are accepted: 4.3 has it in the lines with the header only.
    return metadata is None or metadata.version.startswith("v4.")


def _has_name(header: InspectorHeader | None) -> bool:
    return header is None or _is_name(header.id)


def _has_names(header: InspectorHeader | None, call: _Collective | _PointToPoint | None) -> bool:
    kind = call.coll if isinstance(call, _Collective) else call.p2p if call else "none"
    return _is_name(kind) and _has_name(header)


def _inspected(call: _Collective | _PointToPoint, header: int) -> InspectedCall:
    if isinstance(call, _Collective):
        kind, sequence, size = call.coll, call.coll_sn, call.coll_msg_size_bytes
        time_us, bandwidth = call.coll_exec_time_us, call.coll_busbw_gbs
        is_compared = kind in COMPARED_KINDS and call.coll_timing_source == COMPARED_SOURCE
    else:
        kind, sequence, size = call.p2p, call.p2p_sn, call.p2p_msg_size_bytes
        time_us, bandwidth, is_compared = call.p2p_exec_time_us, call.p2p_busbw_gbs, False
    return InspectedCall(
        header,
        kind,
        sequence,
        size,
        round(time_us * _MICROSECOND_NS),
        round(bandwidth * time_us * _MICROSECOND_NS),
        is_compared,
    )
