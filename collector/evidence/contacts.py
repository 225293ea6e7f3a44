"""Receipts of a node's envelopes: first contact with a node and its GPUs, and the limit of late reports.

Nothing is observed before the first accepted frame of a node, and of a GPU in it: any holder of a
node's token could invent it. Late reports of claims are pending review. An agent that was offline
sends its spool in order, oldest first: only envelopes with a current frame count as the previous
one, so its reports of the time offline are trusted for as long as `MAX_AGE_NS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from collector.evidence.chunk import Span, add_spans
from railscope.wire import Envelope, SentAt

_SECOND_NS = 1_000_000_000
TOLERANCE_NS = 120 * _SECOND_NS
"""Time before its first receipt in which a GPU may be observed: the content of the first envelopes."""
LATE_NS = 3_600 * _SECOND_NS
"""Maximum time that a claim may reach back before the previous envelope of its node."""
MAX_AGE_NS = 72 * LATE_NS
"""Maximum time that any fact may reach back before its receipt."""
MAX_GPUS = 256
"""GPUs that a node may ever have reported; further ones are not accepted as evidence."""

MAX_STRETCHES = 4096
"""Maximum number of spans of a node's reports; they show that a GPU has left it."""


class Contact(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """First receipt of a frame with a GPU in it from a node, and the GPU's PCI address there."""

    heard_ns: int
    pci: str = ""


class NodeReceipts(msgspec.Struct, array_like=True):
    """Receipts of one node: the last envelope with a current frame (0: none), and its GPUs."""

    current_ns: int = 0
    gpus: dict[str, Contact] = {}
    reports: list[Span] = []
    """Time in which the node reported anything: the newest spans."""

    def horizon_ns(self, received_ns: int) -> int:
        """Return the timestamp from which an envelope's claims and ends are trusted."""
        previous_ns = min(self.current_ns, received_ns)
        return max(previous_ns - LATE_NS, received_ns - MAX_AGE_NS)

    def receive(self, received_ns: int, sent: SentAt, envelope: Envelope) -> None:
        """Record an envelope, after its content was recorded."""
        ages = (
            sent.age_ns(envelope.boot_id, batch.wall_ns[-1], batch.boot_ns[-1])
            for batch in envelope.batches
            if batch.rows
        )
        if min(ages, default=LATE_NS + 1) <= LATE_NS:
            self.current_ns = max(self.current_ns, received_ns)

    def attend(self, spans: Iterable[Span]) -> None:
        """Record the time of a node's reports."""
        add_spans(self.reports, [Span(span.first_ns, span.last_ns) for span in spans])
        del self.reports[:-MAX_STRETCHES]

    def meet(self, gpu: str, contact: Contact) -> bool:
        """Record the first receipt of a GPU; true if it is earlier than the recorded one."""
        known = self.gpus.get(gpu)
        if known is not None and known <= contact:
            return False
        self.gpus[gpu] = contact
        return True

    def accepts(self, gpu: str) -> bool:
        """True if the node may report this GPU."""
        return gpu in self.gpus or len(self.gpus) < MAX_GPUS


Contacts = Mapping[str, Mapping[str, Contact]]
"""By node and GPU."""
NO_CONTACTS: Contacts = MappingProxyType({})


def floor_ns(contacts: Contacts, gpu: str, node: str, heard_ns: Iterable[int] = ()) -> int:
    """Return the timestamp before which a GPU is not observed in a node."""
    known = contacts.get(node, {}).get(gpu)
    receipts = [*heard_ns, *([known.heard_ns] if known else ())]
    return min(receipts, default=0) - TOLERANCE_NS


def node_floor_ns(contacts: Contacts, node: str) -> int:
    """Return the timestamp before which no GPU is observed in a node."""
    known = (contact.heard_ns for contact in contacts.get(node, {}).values())
    return min(known, default=0) - TOLERANCE_NS
