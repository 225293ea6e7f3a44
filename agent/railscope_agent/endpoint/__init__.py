"""HTTP endpoint of the agent: metrics, health, and claims."""

from __future__ import annotations


class EndpointError(Exception):
    """Base of the errors of the endpoint: a request that is answered with its message."""
