"""Receipts of envelopes: an envelope has the same facts at every collector that it is sent to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from support.examples import fewer_examples
from support.postgresql import PostgreSQL
from support.story import SECOND, NodeReporter, accept, claim_started, core_in, gpus_of

from railscope.wire import MAX_RECEIPT_CHARACTERS, SentAt
from railscope_collector.evidence import node_intervals
from railscope_collector.evidence.first_receipts import (
    MAX_RECEIPT_AGE_NS,
    FirstReceipt,
    ReceiptSigner,
)
from railscope_collector.evidence.open_quarters import OpenQuarters
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata

NOW = 2_000
RECORD = FrameRecord("n1", 1_000, SentAt(900, 50, "boot"), b"body")


@pytest.fixture
def url(server: PostgreSQL) -> str:
    return server.database()


def signer(url: str) -> ReceiptSigner:
    made, database = ReceiptSigner(), Database(url, metadata)
    made.open(database)
    database.close()
    return made


def test_collectors_of_one_database_verify_receipts_of_each_other(url: str) -> None:
    text = signer(url).issue(RECORD)
    assert 0 < len(text) <= MAX_RECEIPT_CHARACTERS
    found = signer(url).verify("n1", b"body", text, NOW)
    assert found == FirstReceipt(1_000, RECORD.sent)
    again = replace(RECORD, received_wall_ns=5_000, first_received_ns=1_000, first_sent=RECORD.sent)
    assert signer(url).issue(again) == text, "the first receipt stays"
    assert signer(url).verify("n1", b"body", text, 1_000 + MAX_RECEIPT_AGE_NS) == found
    assert signer(url).verify("n1", b"body", text, 1_001 + MAX_RECEIPT_AGE_NS) is None


def test_a_receipt_is_of_one_node_one_envelope_and_one_database(
    server: PostgreSQL, url: str
) -> None:
    made = signer(url)
    text = made.issue(RECORD)
    assert made.verify("n2", b"body", text, NOW) is None
    assert made.verify("n1", b"other", text, NOW) is None
    assert signer(server.database()).verify("n1", b"body", text, NOW) is None
    assert ReceiptSigner().verify("n1", b"body", text, NOW) is None
    assert made.verify("n1", b"body", text + "A" * MAX_RECEIPT_CHARACTERS, NOW) is None


@given(st.data())
@fewer_examples(200)
def test_no_changed_receipt_is_accepted(data: st.DataObject) -> None:
    made = ReceiptSigner(b"k" * 32)
    text = made.issue(RECORD)
    at = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(max_codepoint=0x17F).filter(lambda c: c != text[at]))
    changed = data.draw(
        st.sampled_from([text[:at] + character + text[at + 1 :], text[:at], text[at + 1 :]])
    )
    assert made.verify("n1", b"body", changed, NOW) in {None, made.verify("n1", b"body", text, NOW)}
    assert made.verify("n1", b"body", text[:at], NOW) is None


def facts_of(book: OpenQuarters) -> tuple[list[bytes], list[object]]:
    """The stored content of all intervals, and the claims."""
    intervals = [
        node_intervals.encode_interval(found.interval) for found in book.quarters.by_key.values()
    ]
    return intervals, list(book.unwritten)


def test_an_envelope_has_the_facts_of_its_first_receipt(tmp_path: Path) -> None:
    events = {300: [claim_started("GPU-0", "job", 300, tenant="red")]}
    envelopes = NodeReporter().envelopes_of(
        gpus_of("GPU-0"), range(0, 1201, 30), events=events, each=20
    )
    later = [
        (
            replace(
                record,
                received_wall_ns=record.received_wall_ns + 1300 * SECOND,
                sent=replace(
                    record.sent,
                    wall_ns=record.sent.wall_ns + 1299 * SECOND,
                    boot_ns=record.sent.boot_ns + 1299 * SECOND,
                ),
                first_received_ns=record.received_wall_ns,
                first_sent=record.sent,
            ),
            envelope,
        )
        for record, envelope in envelopes
    ]
    first, second, unproven = (core_in(tmp_path / name) for name in ("a", "b", "c"))
    accept(first, envelopes)
    accept(second, later)
    accept(unproven, [(replace(record, first_sent=None), e) for record, e in later])
    assert facts_of(second.evidence) == facts_of(first.evidence)
    assert facts_of(unproven.evidence) != facts_of(first.evidence)
