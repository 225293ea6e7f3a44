"""The bounds of an envelope: each is checked, and envelopes of an agent are within them."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given, strategies as st

from railscope.batch_encoding import encode_batch
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.envelopes import MAX_EVENT_TEXT, MAX_TEXT, open_body, unpack
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.untrusted_text import printable
from railscope.wire import (
    VERSION,
    Batch,
    Envelope,
    NameRows,
    Shape,
    Slot,
    WireEntity,
    WireError,
    WireEvent,
    encode_part,
    pack,
)

MAX_BYTES = 1 << 24
EMPTY = Batch("s", b"", b"", 1, (1,), (1,), b"", b"")
NODE = WireEntity("node", ())


def sealed(
    *batches: Batch,
    shapes: tuple[Shape, ...] = (),
    names: tuple[NameRows, ...] = (),
    node: str = "n",
) -> bytes:
    parts = tuple(map(encode_part, shapes)), tuple(map(encode_part, names))
    return pack(Envelope(VERSION, node, "r", "b", *parts, batches))


def with_event(event: WireEvent) -> bytes:
    return sealed(msgspec.structs.replace(EMPTY, events=(event,)))


TOO_MUCH = {
    "name": (sealed(node="n" * 256), "length <= 255"),
    "batches": (sealed(*[EMPTY] * 1001), "length <= 1000"),
    "frames": (sealed(*[msgspec.structs.replace(EMPTY, wall_ns=(1,) * 9_000)] * 3), "27000 frames"),
    "shapes": (sealed(shapes=(Shape("s", (), (), ()),) * 257), "length <= 256"),
    "names": (sealed(names=((),) * 257), "length <= 256"),
    "shape stream": (sealed(shapes=(Shape("s" * 256, (), (), ()),)), "length <= 255"),
    "slots": (sealed(shapes=(Shape("s", (), (Slot("node", -1),) * 20_001, ()),)), "length <= 20000"),
    "rows": (sealed(names=((NODE,) * 4097,)), "length <= 4096"),
    "kind": (sealed(names=((WireEntity("k" * 256, ()),),)), "256 characters"),
    "key": (sealed(names=((WireEntity("k", ("w",) * 17),),)), "17 words"),
    "part": (sealed(shapes=(Shape("s", (), (Slot("k", 0, ("w",) * 17),), ()),)), "17 words"),
    "word": (sealed(names=((WireEntity("k", ("w" * 4001,)),),)), "4001 char"),
    "bytes": (sealed(names=((WireEntity("k", ("w" * 3000,)),) * 90,)), "at most 262144"),
    "events": (
        sealed(*[msgspec.structs.replace(EMPTY, events=(WireEvent("e", 0, NODE, 1, 1),) * 6_000)] * 2),
        "12000 events",
    ),
    "event name": (with_event(WireEvent("e" * 256, 0, NODE, 1, 1)), "256 characters"),
    "facts": (with_event(WireEvent("e", 0, NODE, 1, 1, {str(n): "" for n in range(65)})), "65 facts"),
    "fact": (with_event(WireEvent("e", 0, NODE, 1, 1, {"a": "x" * 4001})), "4001 characters"),
    "fact name": (with_event(WireEvent("e", 0, NODE, 1, 1, {"a" * 256: ""})), "256 characters"),
    "text": (with_event(WireEvent("e", 0, NODE, 1, 1, {str(n): "x" * 4000 for n in range(5)})),
             "at most 16384 characters"),
    "event bytes": (with_event(WireEvent("e", 0, NODE, 1, 1, {"a": "x" * 40_000})), "bytes: expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_an_envelope_beyond_a_bound_is_rejected(name: str):
    body, terms = TOO_MUCH[name]
    with pytest.raises(WireError, match=terms):
        unpack(body, MAX_BYTES)


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=6000), max_size=80))
def test_events_of_an_agent_are_within_the_bounds(facts: dict[str, str]):
    schema = Schema("agent", (), (Entity(DROP, ("disk",)),))
    event = Event(GAP_EVENT, Entity(DROP, ("disk",)), 1, 1, facts, 7)
    frame = Frame(
        FrameOrigin("n", "r", "b"), schema, 1, NodeTimestamp(1, 1), array("q"), events=(event,)
    )
    batch = encode_batch([frame])
    facts = {printable(name): printable(text) for name, text in facts.items()}
    (found,) = unpack(sealed(batch), MAX_BYTES).batches[0].events
    assert found.number == 7
    whole = len(facts) <= 64 and all(len(text) <= MAX_TEXT for text in facts.values())
    if whole and sum(len(n) + len(t) for n, t in facts.items()) < MAX_EVENT_TEXT - 100:
        assert found.facts == facts


def test_a_body_is_opened_without_its_events():
    event = WireEvent("e", 0, NODE, 1, 1, {"text": "x" * 1000})
    batch = msgspec.structs.replace(EMPTY, base=bytes(4000), events=(event,))
    body = sealed(batch, names=((NODE,) * 100,))
    opened = open_body(body, MAX_BYTES)
    assert opened.event_bytes == len(msgspec.msgpack.encode(event))
    assert opened.decode_envelope() == unpack(body, MAX_BYTES)
