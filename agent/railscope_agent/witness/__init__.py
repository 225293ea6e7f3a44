"""Witness of the collector's audit log: the newest checkpoint, verified, stored and cosigned."""

from __future__ import annotations


class WitnessError(Exception):
    """Base of the errors of the witness: no usable response of the collector, a checkpoint conflict."""
