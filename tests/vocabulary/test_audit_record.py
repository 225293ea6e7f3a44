"""Audit records have exactly one encoding, that of RFC 8785."""

from __future__ import annotations

import contextlib
import unicodedata

import msgspec
import pytest
import rfc8785
from hypothesis import given, strategies as st

from railscope.audit.record import (
    TYPES,
    AuditRecord,
    RecordActor,
    RecordData,
    RecordError,
    RecordSource,
    RecordSubject,
    decode_audit_record,
    encode_audit_record,
)

PLAIN = AuditRecord(
    v=1,
    type="access.denied",
    id="collector/c1/0",
    seq=7,
    t="1790000000000000000",
    tu=3,
    src=RecordSource("collector", "c1", "b", 0),
    actor=RecordActor("tenant", "alice", "token", "127.0.0.1"),
    obj=RecordSubject("node-1"),
    out="denied",
    data={"route": "/api/v1/tenants"},
)

text = st.text(st.characters(codec="utf-8"), max_size=20).map(
    lambda value: unicodedata.normalize("NFC", value)
)
keys = st.text(st.characters(codec="ascii"), max_size=10)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | text
datas = st.dictionaries(
    keys,
    scalars | st.lists(scalars, max_size=4) | st.dictionaries(keys, scalars, max_size=4),
    max_size=6,
)


@given(datas, text, st.sampled_from(sorted(TYPES)))
def test_a_record_survives_its_bytes_and_they_are_those_of_rfc_8785(
    data: RecordData, actor: str, kind: str
) -> None:
    record = msgspec.structs.replace(PLAIN, data=data, actor=RecordActor("user", actor), type=kind)
    raw = encode_audit_record(record)
    assert decode_audit_record(raw) == record
    assert raw == rfc8785.dumps(msgspec.json.decode(raw))


@given(st.data())
def test_no_other_bytes_are_the_same_record(data: st.DataObject) -> None:
    raw = encode_audit_record(PLAIN)
    at = data.draw(st.integers(0, len(raw) - 1))
    spaced = raw[:at] + data.draw(st.sampled_from([b" ", b"\n", b"\\u0061", b"0"])) + raw[at:]
    with contextlib.suppress(RecordError):
        assert decode_audit_record(spaced) != PLAIN


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (b'"tu":3', b'"tu":3.0', "invalid (encoding|audit record)"),
        (b'"tu":3', b'"tu":9007199254740992', "invalid audit record"),
        (b'"tu":3', b'"tu":-1', "invalid audit record"),
        (b'"tu":3', b'"tu":3,"tu":3', "invalid encoding"),
        (b'"tu":3', b'"tu":3,"zz":1', "invalid audit record"),
        (b'"pii":{},', b"", "invalid encoding"),
        (b'"v":1', b'"v":2', "version 2"),
        (b"access.denied", b"access.granted", "unknown audit record"),
        (b"1790000000000000000", b"01790000000000000000", "nanoseconds"),
        (b'"alice"', '"Ame\u0301lie"'.encode(), "NFC"),
        (b'"route"', '"ro\u00fbte"'.encode(), "expected ASCII"),
        (b'"denied"', b'"\xff"', "invalid audit record"),
    ],
)
def test_bytes_that_are_not_a_record_are_rejected(
    before: bytes, after: bytes, problem: str
) -> None:
    raw = encode_audit_record(PLAIN)
    assert before in raw
    with pytest.raises(RecordError, match=problem):
        decode_audit_record(raw.replace(before, after))


def test_what_has_no_encoding_is_rejected_before_it_is_written() -> None:
    for data in ({"share": 0.5}, {"big": 2**53}, {"text": "\ud800"}, {"deep": {"a": {"b": 1}}}):
        with pytest.raises(RecordError):
            encode_audit_record(msgspec.structs.replace(PLAIN, data=data))
    with pytest.raises(RecordError, match="by its hash"):
        encode_audit_record(msgspec.structs.replace(PLAIN, data={"text": "x" * 40_000}))
