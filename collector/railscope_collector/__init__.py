"""The collector: receives frames of all nodes, serves cluster, rail and tenant views."""

from __future__ import annotations

from railscope import RailscopeError


class CollectorError(RailscopeError):
    """Base of the errors of modules outside the packages: a file of the clock, a store of the archive."""
