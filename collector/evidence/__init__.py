"""Evidence: what frames, claim events and administrators' files say of each GPU, kept as facts.

    chunk      what a node's frames of a quarter of an hour said
    seen       which metering facts a schema carries
    told       claims as events tell them
    watched, claims_file, tenants_file, calendar_file, retired_file   what administrators say
    administration   what auditors are told of that
    assemble   facts as metering takes them
    book       the facts in memory, fed by the core
    schema, store   the facts in the ledger's database
    settle     facts into the database, days into the ledger

Facts are sets: neither order nor repetition means anything, so two collectors may tell the same.
"""
