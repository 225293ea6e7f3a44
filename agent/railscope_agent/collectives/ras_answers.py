"""Answers of NCCL's RAS subsystem in JSON (2.28.7 and later): reports, which have every rank, and events of `MONITOR`.

Source: NVIDIA/nccl src/ras/client_support.cc. NCCL before 2.29.2 writes no comma between `nvml_dev` and
`status` of a missing rank. Exactly that comma is added, in answers of these versions only: a general
repair would hide other damage.
"""

from __future__ import annotations

import json
import re
from typing import Annotated

import msgspec

from railscope.untrusted_text import DECODING_ERRORS, printable
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.ras_report import (
    MAX_COMMUNICATORS,
    MAX_EVENTS,
    MAX_KINDS,
    MAX_RANKS,
    MAX_TEXT,
    Number,
    RasReport,
    ReportedCommunicator,
    ReportedPeer,
    ReportedRank,
    Text,
)

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_SUCCESS, _IN_PROGRESS = 0, 7  # ncclSuccess, ncclInProgress of ncclResult_t
_MISSING_COMMA = re.compile(
    rb'("nvml_dev": -?\d{1,10})(\s{1,64}"status": \{\s{0,64}"unresponsive":)'
)
_OF_MALFORMED = re.compile(rb'\{\s{0,64}"nccl_version": "2\.(?:28\.\d{1,3}|29\.[01])"')


class _RankStatus(msgspec.Struct, frozen=True):
    init_state: Number = 0
    async_error: Number = 0
    abort_flag: bool = False
    considered_dead: bool = False


class _JsonRank(msgspec.Struct, frozen=True):
    rank: _Rank
    host: Text = ""
    pid: Number = -1
    cuda_dev: Number = -1
    status: _RankStatus = _RankStatus()
    collective_counts: Annotated[dict[Text, _Count], msgspec.Meta(max_length=MAX_KINDS)] = {}


class _JsonCommunicator(msgspec.Struct, frozen=True):
    hash: Text
    size: _Size
    ranks: list[_JsonRank]
    secondary_hash: Text = ""
    missing_ranks: list[_JsonRank] = []


class _JsonReport(msgspec.Struct, frozen=True):
    nccl_version: Text
    communicators: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_COMMUNICATORS)]


_decoder = msgspec.json.Decoder(_JsonReport)
_WITHOUT_CONTROLS = bytes(max(byte, ord(" ")) for byte in range(256))
"""Between values, control characters are white space; in a name, which NCCL does not escape, they are not valid JSON."""
_communicator_decoder = msgspec.json.Decoder(_JsonCommunicator)


def parse_report(content: bytes) -> RasReport:
    """Parse a report in JSON; a communicator that is not valid is left out. Raises CollectiveFormatError."""
    if _OF_MALFORMED.match(content):
        content = _MISSING_COMMA.sub(rb"\1,\2", content)
    try:
        answer = _decoder.decode(content.translate(_WITHOUT_CONTROLS))
    except DECODING_ERRORS as error:
        message = f"invalid report: {error}"
        raise CollectiveFormatError(message) from error
    communicators: list[ReportedCommunicator] = []
    remaining = MAX_RANKS
    for raw in answer.communicators:
        found = _communicator(raw, remaining)
        if found:
            remaining -= len(found.ranks)
            communicators.append(found)
    damaged = len(answer.communicators) - len(communicators)
    return RasReport(printable(answer.nccl_version), communicators, damaged=damaged)


def _communicator(raw: msgspec.Raw, max_ranks: int) -> ReportedCommunicator | None:
    """Return a communicator; None if it is not valid, or has more ranks than this."""
    try:
        found = _communicator_decoder.decode(raw)
    except DECODING_ERRORS:
        return None
    ranks = [*map(_present, found.ranks), *map(_missing, found.missing_ranks)]
    numbers = {rank.rank for rank in ranks}
    # A communicator with a rank twice, or beyond its size, is damaged: a verdict could name the wrong rank.
    if len(ranks) > max_ranks or len(numbers) < len(ranks):
        return None
    if max(numbers, default=-1) >= found.size:
        return None
    name = printable(":".join(filter(None, (found.hash, found.secondary_hash))))
    ranks.sort(key=lambda rank: rank.rank)
    return ReportedCommunicator(name, found.size, ranks)


def _present(rank: _JsonRank) -> ReportedRank:
    status = rank.status
    problem = detail = ""
    # In order of importance: each one found replaces the one before it.
    if _IN_PROGRESS in {status.init_state, status.async_error}:
        problem = "starting"
    for name in ("init_state", "async_error"):
        if (number := getattr(status, name)) not in {_SUCCESS, _IN_PROGRESS}:
            problem, detail = "failed", f"{name} {number}"
    if status.abort_flag:
        problem, detail = "failed", "aborted"
    counts = {printable(kind): count for kind, count in rank.collective_counts.items()}
    return ReportedRank(
        rank.rank, printable(rank.host), rank.pid, rank.cuda_dev, problem, detail, counts
    )


def _missing(rank: _JsonRank) -> ReportedRank:
    problem = "dead" if rank.status.considered_dead else "missing"
    return ReportedRank(rank.rank, printable(rank.host), rank.pid, rank.cuda_dev, problem)


class _EventPeer(msgspec.Struct, frozen=True):
    host: Text = ""
    pid: Number = -1
    addr: Text = ""


class _MonitorEvent(msgspec.Struct, frozen=True):
    event: Text
    peer: _EventPeer = _EventPeer()
    details: Annotated[str, msgspec.Meta(max_length=1024)] = ""


def parse_events(content: bytes) -> tuple[list[ReportedPeer], bytes]:
    """Return the processes that MONITOR reports as dead, and the content behind the last whole event.

    Events are JSON objects without a separator; one of another form is left out.
    """
    text = content.decode(errors="surrogateescape")
    dead: list[ReportedPeer] = []
    # Not strict: NCCL does not escape control characters of names, and one must not look like an incomplete event.
    decoder, position = json.JSONDecoder(strict=False), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            break  # incomplete: the rest is received later
        except (RecursionError, ValueError) as error:
            message = f"invalid events: {error}"
            raise CollectiveFormatError(message) from error
        try:
            # Converted separately from decoding: the end of an invalid event is known, and the next one can
            # be read.
            event = msgspec.convert(value, _MonitorEvent)
        except DECODING_ERRORS:
            continue
        if event.event == "PEER_DEAD" and len(dead) < MAX_EVENTS:
            peer = event.peer
            host = peer.host or peer.addr
            dead.append(
                ReportedPeer(printable(host), peer.pid, printable(event.details[:MAX_TEXT]))
            )
    return dead, text[position:].encode(errors="surrogateescape")
