"""State of the collector: application of accepted envelopes, snapshots, and restart."""

from __future__ import annotations


class StateError(Exception):
    """Base of the errors of the state: a snapshot or a record that cannot be applied."""
