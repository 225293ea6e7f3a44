"""Audit log format: records, the Merkle tree over them, signed checkpoints and proofs.

Contains all that an outside verifier needs to check the log from files and a public key. Shared by
collector and agents; `railscope_collector.audit` writes the log.
"""

from __future__ import annotations

from railscope import RailscopeError


class AuditFormatError(RailscopeError, ValueError):
    """Base of the errors of this package: a record, note or checkpoint that is not well formed or not valid."""
