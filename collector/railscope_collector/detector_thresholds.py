"""Thresholds of the diagnosis that depend on a site: settings of the collector, and of `railscope diagnose`.

All others are constants beside their use in `diagnosis`. docs/configuration.md lists these with their defaults.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class JobThresholds(Struct, frozen=True, kw_only=True):
    """Jobs."""

    slow_speed: Share = 0.93
    """Speed relative to its past below which a job is slow."""


class NodeThresholds(Struct, frozen=True, kw_only=True):
    """Nodes that do not report, and their clocks."""

    max_missed_receipts: Annotated[float, Meta(ge=1)] = 3.0
    """Frames of a node that may be missing."""
    min_stale_seconds: Annotated[float, Meta(gt=0)] = 15.0
    """Seconds without frames after which a node may be stale."""
    max_restart_seconds: Annotated[float, Meta(ge=0)] = 90.0
    """Seconds without frames that a restart of the agent may explain: a separated node is reported as `info` until then."""
    max_clock_offset_seconds: Annotated[float, Meta(gt=0)] = 0.05
    """Difference of a node's clock from that of the others."""
    critical_clock_offset_seconds: Annotated[float, Meta(gt=0)] = 2.0
    """Difference from which on an incident is critical."""


class AdviceThresholds(Struct, frozen=True, kw_only=True):
    """Advice about settings."""

    majority: Share = 0.75
    """Share of peers with the same setting from which on another one is a drift."""
    rollout_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """Time in which several nodes that change a setting are a rollout."""
    rollout_nodes: Annotated[int, Meta(ge=2)] = 2
    """Number of these nodes."""


class DetectorThresholds(Struct, frozen=True, kw_only=True):
    """Thresholds of all detectors."""

    jobs: JobThresholds = JobThresholds()
    nodes: NodeThresholds = NodeThresholds()
    advice: AdviceThresholds = AdviceThresholds()
