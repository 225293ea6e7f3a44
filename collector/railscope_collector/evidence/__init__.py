"""Usage evidence: facts about each GPU from frames, claim events and administrators' files.

  node_intervals   facts from a node's frames of 15 minutes, and its receipts
  claim_events     facts from claim events, and the ends of claims
  boot_starts      starts of boots on GPUs, which end claims that they do not report
  batch_facts      facts from one batch, and bounds on facts in memory
  evidence_memory, evidence_book   facts in memory, fed by the state of the collector
  waiting_evidence   facts on disk while the database is unavailable
  evidence_tables, evidence_store, evidence_records   facts in the ledger's database, audit records
  gpu_node_history, node_claims, claim_placement   the node and the claims that have a GPU, and when
  review_rules, review_decisions   evidence that is pending review, and its decisions
  evidence_contents, node_parts   index of what parts contain, and parts of a node found by it
  further_parts, loaded_facts   parts beyond a window that affect it, and all facts of a window
  gpu_evidence, gpu_counters   facts in the form that metering reads, and increments of counters
  fact_store, day_facts, day_metering   facts that mark the days which they change, and a day of a GPU as a pure
                   function of them; they are to replace the modules from boot_starts on, and are not in use yet

Facts are sets: neither order nor repetition matters, so two collectors may record the same facts.
"""

from __future__ import annotations

from railscope import RailscopeError


class EvidenceError(RailscopeError):
    """Base of the errors of evidence: an invalid claim event, evidence that cannot be read."""
