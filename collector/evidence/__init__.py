"""Usage evidence: facts about each GPU from frames, claim events and administrators' files.

  chunk            facts from a node's frames of 15 minutes
  claim_events     facts from claim events
  taking           facts from one batch
  book             facts in memory, fed by the core
  schema, queries, store, quarantine   facts in the ledger's database
  changes          facts that may change ledger days
  contacts, occupancy, places, disputes   the node that has a GPU, and when
  ends, node_claims, unplaced   the claims that hold a GPU, and when
  review, decisions   evidence that is pending review, and its decisions
  administration, trouble   audit records of files and of problems
  assemble         facts in the form that metering reads

Facts are sets: neither order nor repetition matters, so two collectors may record the same facts.
"""
