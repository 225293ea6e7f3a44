"""The audit log: an append-only Merkle log on disk, written durably and signed.

    journal/   records acknowledged since the last checkpoint (`journal`)
    tile/      records and hashes of everything signed (`tiles`)
    checkpoint the newest signed size and root

`log_writer` writes it, `checkpoint_publisher` signs it, `verification` checks it from files and a public key;
`railscope_collector.commands.audit` is its command line. The housekeeping files beside it are those of `acknowledgement`,
`cosignatures` and `log_ownership`.
"""

from __future__ import annotations


class AuditLogError(Exception):
    """Base of the errors of this package: a log, its files or its ledger cannot be used or verified."""


class LogWriteError(AuditLogError, RuntimeError):
    """The audit log cannot be written; the message states the reason and the remedy."""


class SigningPostponedError(LogWriteError):
    """Signing is postponed; this is not a failure."""
