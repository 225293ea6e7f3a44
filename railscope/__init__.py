"""Railscope: GPU, PCIe, RoCE and tenant telemetry of a training cluster on one clock."""

from __future__ import annotations

__version__ = "0.2.0"


class RailscopeError(Exception):
    """Base of the errors of the shared packages: input or settings that the caller reports or rejects."""
