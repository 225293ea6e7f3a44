"""The key of an audit log, in a file."""

from __future__ import annotations

from pathlib import Path

from railscope.audit.signed_note import SecretKey
from railscope_collector.audit.log_secrets import load_or_generate_key, store_key


def load_or_create_key(path: Path, origin: str) -> SecretKey:
    """The key in the file, as the collector creates it at its start."""
    return store_key(path, load_or_generate_key(path, origin))
