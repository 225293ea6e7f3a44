"""The audit log: an append-only Merkle log in tables of the ledger's database.

`tables` has its tables, `log_writer` writes and signs it, `verification` checks it from the database and a public key;
`railscope_collector.commands.audit` is its command line.
"""

from __future__ import annotations


class AuditLogError(Exception):
    """Base of the errors of this package: a log or its ledger cannot be used or verified."""


class LogWriteError(AuditLogError, RuntimeError):
    """The audit log cannot be written; the message states the reason and the remedy."""


class SigningPostponedError(LogWriteError):
    """Signing is postponed; this is not a failure."""
