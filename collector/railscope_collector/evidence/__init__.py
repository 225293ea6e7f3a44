"""Usage evidence: facts about each GPU from frames, claim events and administrators' files.

  node_intervals   facts from a node's frames of 15 minutes
  claim_events     facts from claim events, and the ends of claims
  batch_facts      facts from one batch, and bounds on facts in memory
  open_quarters, quarter_memory, open_claims   facts in memory, fed by the state of the collector
  waiting_evidence   facts on disk while the database is unavailable
  fact_store, fact_tables, stored_quarters, gpu_states, file_versions   facts and files in the ledger's database,
                   which mark the days that they change
  evidence_records   audit records of problems, and rows that are damaged
  day_facts, counter_readings, day_metering, usage_facts   a day of a GPU as a pure function of facts and files
  day_archive, archive_files, fact_deletion   files of days, and deletion of facts that are in them
  former_facts     facts of release 0.3.0, which are copied once

Facts are sets: neither order nor repetition matters, so two collectors may record the same facts.
"""

from __future__ import annotations

from railscope import RailscopeError


class EvidenceError(RailscopeError):
    """Base of the errors of evidence: an invalid claim event, evidence that cannot be read."""
