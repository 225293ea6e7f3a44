"""Signed receipts of envelopes, so that their facts do not depend on the collector that stores them.

Times of facts follow from the receipt of an envelope. If it is sent again to another collector because the first one
failed before it stored the facts, it carries the receipt of the first. The key is in the shared database, so a node
can neither invent a receipt nor change it. Without a receipt, an envelope has the time of its delivery.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from railscope.timestamps import SECOND_NS
from railscope.untrusted_text import DECODING_ERRORS
from railscope.wire import MAX_RECEIPT_CHARACTERS, SentAt
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database
from railscope_collector.ledger.schema import insert_new, key_numbers, make_append_only, metadata

_KEY_BYTES = _CODE_BYTES = 32
_START_SECONDS = 5.0
_PURPOSE = "receipt of an envelope"

receipt_keys = sa.Table(
    "receipt_key",
    metadata,
    *key_numbers("number"),
    sa.Column("key", sa.LargeBinary, nullable=False),
)
"""One row with the key of all collectors of the database."""
make_append_only(receipt_keys)


MAX_RECEIPT_AGE_NS = 3_600 * SECOND_NS
"""An older receipt has no effect: a node could otherwise report facts that it withheld as if they were timely."""


class FirstReceipt(msgspec.Struct, frozen=True, array_like=True):
    """Time of the first receipt of an envelope, and the node's clocks when it was sent then."""

    received_ns: int
    sent: SentAt


@dataclass(slots=True)
class ReceiptSigner:
    """Issues and verifies receipts; without a key it does neither."""

    _key: bytes = b""
    is_awaited: bool = False
    """True until the key of a shared database was read."""
    _reading: asyncio.Task[None] | None = None

    def open(self, database: Database) -> None:
        """Read the key of a database server, or create it. Blocking; raises UnusableLedgerError."""
        if database.file is not None:
            return  # no other collector uses it
        new = {"number": 1, "key": secrets.token_bytes(_KEY_BYTES)}
        with database.transaction(writes=True) as connection:
            connection.execute(insert_new(connection, receipt_keys).values(new))
            # Read back: another collector may have inserted its key first.
            self._key = connection.execute(sa.select(receipt_keys.c.key)).scalar_one()
        self.is_awaited = False

    async def open_at_start(self, open_database: Callable[[], Database]) -> None:
        """Read the key, before frames are received: a database that does not respond soon is read later."""

        async def read_key() -> None:
            with suppress(UnusableLedgerError):  # every user of the database reports it
                await call_database(lambda: self.open(open_database()))

        if self.is_awaited:
            self._reading = asyncio.create_task(read_key())
            await asyncio.wait({self._reading}, timeout=_START_SECONDS)

    def issue(self, record: FrameRecord) -> str:
        """Return the receipt of a record; empty without a key, or if the collector's clock was in doubt."""
        # A receipt by a doubted clock would fix a wrong time for all collectors.
        if not self._key or record.doubted_since_ns:
            return ""
        first = record.as_first_received
        content = msgspec.msgpack.encode(FirstReceipt(first.received_wall_ns, first.sent))
        code = self._code(record.node, record.body, content)
        return base64.urlsafe_b64encode(code + content).decode()

    def verify(self, node: str, body: bytes, text: str, now_ns: int) -> FirstReceipt | None:
        """Return the receipt of an envelope of a node; None if it is too old, or of no collector of this database."""
        if not self._key or len(text) > MAX_RECEIPT_CHARACTERS:
            return None
        try:
            decoded = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        code, content = decoded[:_CODE_BYTES], decoded[_CODE_BYTES:]
        # In constant time: the duration must not show how much of a forged code is right.
        if not hmac.compare_digest(code, self._code(node, body, content)):
            return None
        try:
            receipt = msgspec.msgpack.decode(content, type=FirstReceipt)
        except DECODING_ERRORS:
            return None
        return receipt if now_ns - receipt.received_ns <= MAX_RECEIPT_AGE_NS else None

    def _code(self, node: str, body: bytes, content: bytes) -> bytes:
        # With the purpose, so that a code for another use of the key is invalid here; and with the body, so that a
        # receipt is valid for its envelope only.
        parts = (_PURPOSE, node, hashlib.sha256(body).digest(), content)
        return hmac.digest(self._key, msgspec.msgpack.encode(parts), "sha256")
