"""Answers of NCCL's RAS subsystem: reports as JSON or text, and events of `MONITOR`."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec

from railscope.untrusted_text import DECODING_ERRORS, printable
from railscope_agent.collectives import CollectiveFormatError
from railscope_agent.collectives.ras_json import parse_json
from railscope_agent.collectives.ras_report import (
    MAX_EVENTS,
    MAX_TEXT,
    Number,
    RasReport,
    ReportedPeer,
    Text,
)
from railscope_agent.collectives.ras_text import parse_text


def parse_report(content: bytes, *, is_json: bool) -> RasReport:
    """Parse the answer to VERBOSE STATUS. Raises CollectiveFormatError."""
    return parse_json(content) if is_json else parse_text(content)


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
