"""State of the collector: application of accepted envelopes, checkpoints, and restart."""

from __future__ import annotations


class StateError(Exception):
    """Base of the errors of the state: a checkpoint or a record that cannot be applied."""
