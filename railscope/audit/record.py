"""Audit records and their canonical encoding.

A record is canonical JSON: UTF-8, keys in ASCII and sorted, no whitespace, no floats, integers within
2^53 (larger ones are strings), no duplicate keys, text in Unicode NFC. Under these limits the bytes are
those of RFC 8785. Every other spelling of the same content is rejected, so that a record has exactly one
encoding and one hash.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

import msgspec

from railscope.audit import AuditFormatError

VERSION = 1
MAX_RECORD_BYTES = 32 << 10
_LARGEST = (1 << 53) - 1

FAMILIES = {
    "tenancy": "assign release transfer conflict unclaimed_use rogue_process scrub",
    "device": "mig ecc clocks power_limit compute_mode sharing firmware driver reset retire",
    "network": "pfc ecn dscp mtu buffer nic_firmware link_admin",
    "node": "boot join cordon drain resume reimage",
    "identity": "enrol_request enrol_approve enrol_reject rotate revoke duplicate expired attest",
    "access": "login token role denied cross_tenant break_glass",
    "admin": "config retention backup restore upgrade rule_change silence",
    "billing": "price tenant_map import close opening issue void adjust export head",
    "evidence": "incident_open incident_update incident_close gap clock_step counter_reset quarantine decide archive delete restore",
    "log": "genesis key_rotate policy witness recovered archive prune",
}
TYPES = frozenset(
    f"{family}.{name}" for family, names in FAMILIES.items() for name in names.split()
)

StoredInteger = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
Scalar = bool | StoredInteger | str | None
RecordData = dict[str, Scalar | list[Scalar] | dict[str, Scalar]]


class RecordError(AuditFormatError):
    """Invalid audit record; the message states the reason."""


class RecordSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Producer of a record, and the record's consecutive number from it."""

    kind: str
    id: str
    boot: str
    n: Count


class RecordActor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Actor of a record, and how its identity was established."""

    kind: str
    id: str
    auth: str = ""
    ip: str = ""


class RecordSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Object of the action; fields that do not apply are empty."""

    node: str = ""
    gpu: str = ""
    slot: str = ""


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One entry of the audit log. Field names are the short ones of the format."""

    v: Count
    type: str
    id: str
    seq: Count
    """Index of the leaf."""
    t: str
    """Timestamp in nanoseconds since the epoch, as a decimal string: too large for a JSON integer."""
    tu: Count
    """Uncertainty of the timestamp, in milliseconds."""
    src: RecordSource
    actor: RecordActor
    obj: RecordSubject
    out: str
    """Outcome: `done`, `denied`, `failed`, `seen`."""
    data: RecordData = {}
    ref: list[str] = []
    """Identities of frames, entries and records that this record is based on."""
    pii: dict[str, str] = {}
    """Commitments to personal data that is stored, and can be erased, elsewhere."""
    sig: str = ""
    """Signature by the producer; empty if it has no key."""


class RecordHead(msgspec.Struct, frozen=True, gc=False):
    """Number and time of a record of any release; later releases may have other fields and types."""

    seq: Count
    t: str


_NUMBER = re.compile("0|[1-9][0-9]{0,30}")
_NOT_CANONICAL = (
    "invalid encoding of an audit record: expected sorted keys, no spaces and each field once"
)
_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(AuditRecord)
_head_decoder = msgspec.json.Decoder(RecordHead)


def parse_number(text: str) -> int | None:
    """Parse a number that a record contains as text, because it is too large for a JSON integer.

    None for any other text, and for more than 31 digits: no number of this format is that large.
    """
    return int(text) if _NUMBER.fullmatch(text) else None


def encode_audit_record(record: AuditRecord) -> bytes:
    """Encode a record. Raises RecordError if it has no canonical encoding."""
    try:
        raw = _encoder.encode(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"encoding the record {record.type} failed: {error}"
        raise RecordError(message) from error
    # Decoded again: a value that the encoder changes silently would be recorded as another one.
    if decode_audit_record(raw) != record:
        message = f"invalid content of {record.type}: expected values that JSON can represent"
        raise RecordError(message)
    return raw


def renumber(raw: bytes, seq: int) -> bytes:
    """Return an encoded record at another index of the log."""
    # The last such bytes: later fields have no key of this name, and quotation marks in texts are escaped.
    before, key, after = raw.rpartition(b'"seq":')
    return b"%s%s%d%s" % (before, key, seq, after[after.index(b",") :])


def read_record_head(raw: bytes) -> RecordHead:
    """Read the head of a record of any release. Raises RecordError for a text that is not canonical."""
    try:
        head, content = _head_decoder.decode(raw), msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"invalid audit record: {error}"
        raise RecordError(message) from error
    # A record with two numbers would be two records.
    if _encoder.encode(content) != raw:
        raise RecordError(_NOT_CANONICAL)
    return head


def decode_audit_record(raw: bytes) -> AuditRecord:
    """Decode a record. Raises RecordError for every encoding except the canonical one."""
    if len(raw) > MAX_RECORD_BYTES:
        message = (
            f"audit record too large: {len(raw)} bytes: expected at most {MAX_RECORD_BYTES}; fix: refer to"
            " larger content by its hash"
        )
        raise RecordError(message)
    try:
        record = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"invalid audit record: {error}"
        raise RecordError(message) from error
    # A canonical encoding is the one that encoding again returns.
    if _encoder.encode(record) != raw:
        raise RecordError(_NOT_CANONICAL)
    if record.v != VERSION or record.type not in TYPES:
        message = (
            f"unknown audit record: version {record.v}, type {record.type!r}; fix: use the"
            " version of Railscope that wrote it"
        )
        raise RecordError(message)
    if parse_number(record.t) is None:
        message = f"invalid time {record.t[:30]!r}: expected a number of nanoseconds"
        raise RecordError(message)
    # ASCII is always in NFC.
    if not raw.isascii():
        _check_text(msgspec.json.decode(raw))
    return record


def _check_text(value: object) -> None:
    """Check keys and texts. ASCII-only texts need no check."""
    if isinstance(value, str):
        if not unicodedata.is_normalized("NFC", value):
            message = f"invalid text {value[:100]!r}: expected Unicode NFC"
            raise RecordError(message)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not key.isascii():
                message = f"invalid key {key[:100]!r}: expected ASCII"
                raise RecordError(message)
            _check_text(item)
