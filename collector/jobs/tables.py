"""Tables of imported job lists, in the database of the ledger. Rows are added and never changed."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Table, Text

from collector.ledger.schema import cover, make_append_only, metadata

lists = Table(
    "job_list",
    metadata,
    Column("list", BigInteger, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("period_start_ns", BigInteger, nullable=False),
    Column("period_end_ns", BigInteger, nullable=False),
    Column("as_of_ns", BigInteger, nullable=False),
    Column("as_observed", BigInteger, nullable=False),
    Column("imported_ns", BigInteger, nullable=False),
    Column("imported_by", Text, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("rejected", Text, nullable=False),
    CheckConstraint("period_start_ns < period_end_ns", name="time_passes"),
)
"""Imported lists; the highest number of each source and period is valid; `rejected` is JSON."""

jobs = Table(
    "job_list_job",
    metadata,
    Column("list", ForeignKey("job_list.list"), primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("gpu_uuid", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("job_id", Text, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("share", Text, nullable=False),
    Column("unfinished", BigInteger, nullable=False),
    Index("job_list_job_gpu", "gpu_uuid", "list"),
)
"""GPUs of the jobs of a list; `share` is the fraction of the GPU."""

ALL = (lists, jobs)
for _table in ALL:
    make_append_only(_table)
cover("job list", lists, jobs)
