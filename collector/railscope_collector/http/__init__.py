"""HTTP: the table of routes, access control, all handlers, and ingest."""

from __future__ import annotations


class HttpApiError(Exception):
    """Base of the errors of request handlers."""
