"""Tables of the evidence, in the ledger's database. Rows are added and never changed."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text

from collector.ledger.schema import make_append_only, metadata

parts = Table(
    "evidence_part",
    metadata,
    Column("part", Text, primary_key=True),
    Column("node", Text, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("evidence_part_ends", "node", "end_ns"),
    Index("evidence_part_starts", "node", "start_ns"),
    Index("evidence_part_recorded", "recorded_ns"),
)
"""Facts from a node's frames of 15 minutes (`chunk`); the key is the SHA-256 of the content."""

homes = Table(
    "evidence_gpu",
    metadata,
    Column("gpu_uuid", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("since_ns", BigInteger, primary_key=True),
)
"""The nodes a GPU was seen in, and since when: the lowest value counts."""

contacts = Table(
    "evidence_contact",
    metadata,
    Column("node", Text, primary_key=True),
    Column("gpu_uuid", Text, primary_key=True),
    Column("heard_ns", BigInteger, primary_key=True),
    Column("pci", Text, primary_key=True),
)
"""First receipts of GPUs from nodes (`contacts`): the lowest value counts."""

claims = Table(
    "evidence_claim",
    metadata,
    Column("fact", Text, primary_key=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("claim_id", Text, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("evidence_claim_gpu", "gpu_uuid", "start_ns"),
    Index("evidence_claim_recorded", "recorded_ns"),
)
releases = Table(
    "evidence_release",
    metadata,
    Column("fact", Text, primary_key=True),
    Column("gpu_uuid", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("claim_id", Text, nullable=False),
    Column("instant_ns", BigInteger, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Index("evidence_release_gpu", "gpu_uuid", "instant_ns"),
    Index("evidence_release_recorded", "recorded_ns"),
)
"""Claims and their ends as reported; the key is the SHA-256 of the content."""

trust = Table(
    "evidence_release_trust",
    metadata,
    Column("fact", Text, primary_key=True),
    Column("trusted_from_ns", BigInteger, nullable=False),
)
"""Ends, and parts with starts of boots, that were reported late, by name.

The time before `trusted_from_ns` is pending review.
"""

decisions = Table(
    "evidence_decision",
    metadata,
    Column("id", Text, primary_key=True),
    Column("what", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("accepted", BigInteger, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("recorded_ns", BigInteger, nullable=False),
    Column("content", Text, nullable=False),
    Index("evidence_decision_recorded", "recorded_ns"),
)
"""Decisions of people about evidence under review, as events (CloudEvents): the newest counts."""

files = Table(
    "evidence_file",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("recorded_ns", BigInteger, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("content", Text, nullable=False),
)
"""Versions of administrators' files: the newest of each kind counts."""

for _table in (parts, homes, contacts, claims, releases, trust, decisions, files):
    make_append_only(_table)
