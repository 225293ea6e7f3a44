"""Audit log format: records, the Merkle tree over them, signed checkpoints and proofs.

Contains all that an outside verifier needs to check the log from files and a public key. Shared by
collector and agents; `collector.audit` writes the log.
"""
