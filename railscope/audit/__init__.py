"""The audit log's vocabulary: records, the Merkle tree over them, signed checkpoints and proofs.

What a stranger needs to check the log from files and a public key. Collector and agents share it;
who writes the log is `collector.audit`.
"""
